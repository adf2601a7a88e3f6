"""`pretrain.start_from` of a finished model: its weights, new moments, and the recipe's phases from their begin."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.s3 import s3_client
from anadil.core.errors import BudgetReached, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.preflight.base_model import inspect_start_point
from anadil.pretrain.run import run
from anadil.recipe.sections import Storage
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.execute import execute
from anadil.runtime.job import Job
from tests.kit.marks import slow
from tests.kit.pretraining import losses, make_job, make_recipe, make_tokenizer_artifact, run_in_several

LATER: dict[str, Any] = {"phases": [{"trains": "all", "steps": 4, "lr": 0.002}], "checkpoint_every": 2}
"""Phases of the run that begins with the model of another one."""


@pytest.fixture
def model(untied: Path) -> str:
    """The finished model of a run, whose tokenizer moves every row of the base."""
    shutil.rmtree(untied.with_name("tokenizer"))
    make_tokenizer_artifact(untied.with_name("tokenizer"), rows=[[(row + 1) % 300] for row in range(300)])
    recipe = make_recipe(untied).model_copy(update={"storage": Storage(root=str(untied.with_name("root")))})
    inputs = {name: str(untied.with_name(name)) for name in ("corpus", "tokenizer")}
    return execute(STAGES["pretrain"], recipe, inputs, (), None).uri


def as_base(tmp_path: Path, untied: Path, model: str) -> Job:
    """A job with the same phases whose base is that model, and whose tokenizer keeps its vocabulary."""
    recipe = make_recipe(Path(model), **LATER)
    tokenizer = make_tokenizer_artifact(tmp_path / "kept" / "tokenizer")
    return replace(
        make_job(tmp_path, recipe, "as-base"),
        inputs={"corpus": untied.with_name("corpus"), "tokenizer": tokenizer},
    )


@pytest.mark.parametrize(
    ("degrees", "processes"), [({}, 1), ({"shard": 2}, 2), slow({"tensor": 2}, 2), slow({"pipeline": 2}, 2)]
)
def test_it_trains_as_a_run_whose_base_is_that_model(
    tmp_path: Path, untied: Path, model: str, degrees: dict[str, int], processes: int
) -> None:
    run(alike := as_base(tmp_path, untied, model))
    job = make_job(tmp_path, make_recipe(untied, **LATER, start_from=model, parallelism=degrees), "later")

    if processes == 1:
        run(job)
    else:
        assert run_in_several(job, processes) == [0] * processes

    assert losses(job.out) == pytest.approx(losses(alike.out), rel=0 if processes == 1 else 1e-5)
    begin = json.loads((job.out / "training.json").read_text())["start_from"]
    digest = artifact.finished_manifest(model, "model").digest
    assert (begin["place"], begin["digest"], begin["step"], begin["run"]) == (model, digest, 0, model)
    assert (job.out / "config.json").is_file()


def test_a_killed_one_goes_on_to_the_same_bits(tmp_path: Path, untied: Path, model: str) -> None:
    run(whole := make_job(tmp_path, make_recipe(untied, **LATER, start_from=model), "whole"))
    for _ in range(2):
        stopped = make_recipe(untied, **LATER, start_from=model, faults={"budget_hours": 1e-9})
        with pytest.raises(BudgetReached):
            run(make_job(tmp_path, stopped, "killed"))

    run(killed := make_job(tmp_path, make_recipe(untied, **LATER, start_from=model), "killed"))

    assert losses(killed.out) == losses(whole.out)
    assert json.loads((killed.out / "training.json").read_text())["start_from"]["place"] == model


def test_one_in_s3_is_fetched_and_gives_the_same_key_and_losses(
    tmp_path: Path, untied: Path, model: str, bucket: str
) -> None:
    place = f"{bucket}/model"
    for file in [path for path in Path(model).rglob("*") if path.is_file()]:
        s3_client().upload_file(str(file), bucket.removeprefix("s3://"), f"model/{file.relative_to(model)}")
    run(here := make_job(tmp_path, make_recipe(untied, **LATER, start_from=model), "here"))

    run(there := make_job(tmp_path, make_recipe(untied, **LATER, start_from=place), "there"))

    assert losses(there.out) == losses(here.out)
    keys = [
        artifact.origin_key(stage_origin(STAGES["pretrain"], make_recipe(untied, start_from=each), {}, ()))
        for each in (model, place, None)
    ]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RecipeError, r"start_from: .* was trained with another tokenizer; give that one as --tokenizer"),
        (RecipeError, r"was trained from the base .*, and base\.model is .*model; set it to that base"),
        (IntegrityError, r"differs from its manifest|changed"),
        (IntegrityError, r"pickle|manifest"),
    ],
    ids=["tokenizer", "base", "bytes", "pickle"],
)
def test_one_of_another_run_or_damaged_is_refused(
    tmp_path: Path,
    untied: Path,
    model: str,
    request: pytest.FixtureRequest,
    error: type[Exception],
    words: str,
) -> None:
    case = request.node.callspec.id
    recipe = make_recipe(untied.with_name("model") if case == "base" else untied, **LATER, start_from=model)
    job = make_job(tmp_path, recipe, "later")
    if case == "tokenizer":
        shutil.rmtree(tmp_path / "tokenizer")
        make_tokenizer_artifact(tmp_path / "tokenizer", vocab_size=290)
    weights = next(Path(model).glob("*.safetensors"))
    if case == "bytes":
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    if case == "pickle":
        weights.rename(weights.with_name("pytorch_model.bin"))

    with pytest.raises(error, match=words):
        run(job)


def test_the_doctor_says_that_moments_are_new_and_where_some_were_kept(tmp_path: Path, untied: Path) -> None:
    flat = {"schedule": "wsd", "decay_fraction": 0.5}
    recipe = make_recipe(untied, **flat).model_copy(update={"storage": Storage(root=str(tmp_path / "root"))})
    inputs = {name: str(untied.with_name(name)) for name in ("corpus", "tokenizer")}
    place = execute(STAGES["pretrain"], recipe, inputs, (), None).uri

    said = inspect_start_point(make_recipe(untied, start_from=place)).detail

    assert "a finished model, with new moments; only the weights of" in said
    assert "step-00000008" in said
