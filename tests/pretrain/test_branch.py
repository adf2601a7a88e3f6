"""`pretrain.start_from`: a run that begins with the checkpoint of another one goes on as that one would have."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.artifacts import artifact
from anadil.artifacts.s3 import s3_client
from anadil.core.errors import BudgetReached, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.pretrain.check import inspect_start_point
from anadil.pretrain.run import run
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.sections import Recipe, Storage
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.execute import execute
from anadil.runtime.job import Job
from tests.kit.marks import matrix
from tests.kit.pretraining import (
    losses,
    make_corpus,
    make_job,
    make_recipe,
    make_tokenizer_artifact,
    run_in_several,
)
from tests.kit.sources import TEXTS, make_sources_job, make_sources_recipe

Make = Callable[..., Recipe]


def phases(steps: int, **keys: Any) -> list[dict[str, Any]]:
    return [
        {"trains": "embeddings", "steps": 4, "lr": 0.01},
        {"trains": "all", "steps": steps, "lr": 0.005, **keys},
    ]


def checkpoint(job: Job, step: int) -> str:
    return str(job.work / "checkpoints" / f"step-{step:08}")


def same_tensors(one: Path, other: Path) -> bool:
    from safetensors.torch import load_file

    first, second = (load_file(each / "model.safetensors") for each in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


WSD: dict[str, Any] = {
    "schedule": "wsd",
    "decay_fraction": 0.5,
    "warmup_fraction": 0.0,
    "checkpoint_every": 2,
}


def test_a_branch_has_the_losses_and_weights_of_the_run_that_nothing_interrupts(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    first = make_job(tmp_path, make_recipe(base, keep_checkpoints=9), "first")
    run(first)

    branch = make_job(tmp_path, make_recipe(base, start_from=checkpoint(first, 6)), "branch")
    run(branch)

    assert losses(branch.out) == losses(whole)
    assert same_tensors(branch.out, whole)
    before, after = (json.loads((each / "training.json").read_text()) for each in (whole, branch.out))
    assert {key: before[key] for key in ("steps", "tokens", "epochs")} == {
        key: after[key] for key in ("steps", "tokens", "epochs")
    }


def test_a_branch_of_a_plateau_has_the_losses_of_an_uninterrupted_run_of_its_own_recipe(
    tmp_path: Path, base: Path
) -> None:
    # 4 + 8 steps that fall from 8 on, and 4 + 12 that fall by another share: up to step 8 both are flat.
    first = make_job(tmp_path, make_recipe(base, **WSD), "first")
    run(first)
    longer = {**WSD, "phases": phases(12), "decay_fraction": 0.375}
    unbroken = make_job(tmp_path, make_recipe(base, **longer), "unbroken")
    run(unbroken)

    branch = make_job(tmp_path, make_recipe(base, **longer, start_from=checkpoint(first, 8)), "branch")
    run(branch)

    assert len(losses(branch.out)) == 16
    assert losses(branch.out) == losses(unbroken.out) != losses(first.out)
    assert same_tensors(branch.out, unbroken.out)


def test_a_branch_with_sources_takes_the_place_of_each_and_follows_its_own_shares(
    tmp_path: Path, mixed: Path
) -> None:
    first = make_sources_job(tmp_path, make_sources_recipe(mixed, **WSD, keep_checkpoints=9), "first")
    run(first)
    mixes = [{"web": 1}, {"web": 0.6, "en": 0.3, "code": 0.1}]
    decay = {"web": 0.2, "en": 0.2, "code": 0.6}
    own = [{**each, "mix": mix} for each, mix in zip(phases(12, anneal=decay), mixes, strict=True)]
    recipe = {**WSD, "phases": own, "decay_fraction": 0.375}
    unbroken = make_sources_job(tmp_path, make_sources_recipe(mixed, **recipe), "unbroken")
    run(unbroken)

    start = checkpoint(first, 8)
    branch = make_sources_job(tmp_path, make_sources_recipe(mixed, **recipe, start_from=start), "branch")
    run(branch)

    assert losses(branch.out) == losses(unbroken.out)
    assert same_tensors(branch.out, unbroken.out)
    of_sources = [
        json.loads((each / "training.json").read_text())["sources"] for each in (branch.out, unbroken.out)
    ]
    assert of_sources[0] == of_sources[1]
    # The order is planned up to the new end, also where no share is another one.
    own = [{**each, "mix": mix} for each, mix in zip(phases(30), mixes, strict=True)]
    longer = {**WSD, "phases": own, "faults": {"budget_hours": 1e-9}}
    job = make_sources_job(tmp_path, make_sources_recipe(mixed, **longer, start_from=start), "longer")
    with pytest.raises(BudgetReached):
        run(job)
    state = json.loads((Path(checkpoint(job, 9)) / "state.json").read_text())
    assert (state["mixture"]["changes"], state["mixture"]["schedule"]["end"]) == ([], 34 * 4)


@pytest.mark.parametrize("processes", [1, matrix(2)])
def test_a_killed_branch_resumes_its_own_checkpoints_on_one_and_on_two_processes(
    tmp_path: Path, base: Path, processes: int
) -> None:
    def start(job: Job, code: int = 0) -> None:
        if processes == 1:
            with pytest.raises(BudgetReached) if code else nullcontext():
                run(job)
        else:
            assert run_in_several(job, processes) == [code] * processes

    first = make_job(tmp_path, make_recipe(base, keep_checkpoints=9), "first")
    start(first)
    begin = checkpoint(first, 6)
    stopped = make_recipe(base, start_from=begin, faults={"budget_hours": 1e-9})
    branch = make_job(tmp_path, stopped, "branch")
    start(branch, BudgetReached.exit_code)
    saved = [each.name for each in (branch.work / "checkpoints").glob("step-*")]

    again = make_job(tmp_path, make_recipe(base, start_from=begin), "branch")
    start(again)

    assert saved == ["step-00000007"]
    assert losses(again.out) == losses(first.out)
    assert json.loads((again.out / "training.json").read_text())["start_from"]["step"] == 6


def test_a_longer_phase_does_not_warm_up_again_and_a_resume_knows_it(tmp_path: Path, base: Path) -> None:
    recipe: dict[str, Any] = {"schedule": "wsd", "warmup_fraction": 0.25, "checkpoint_every": 8}
    run(first := make_job(tmp_path, make_recipe(base, phases=phases(8), **recipe), "first"))
    # A warm-up of 25 steps, of which 4 are done, two of them at the peak.
    longer = make_recipe(
        base, phases=phases(100), start_from=checkpoint(first, 8), faults={"budget_hours": 1e-9}, **recipe
    )
    for _ in range(2):
        with pytest.raises(BudgetReached):
            run(branch := make_job(tmp_path, longer, "branch"))

    lines = [json.loads(line) for line in (branch.work / "training.jsonl").read_text().splitlines()]
    assert [(line["step"], line["lr"]) for line in lines[-3:]] == [(8, 0.005), (9, 0.005), (10, 0.005)]


def test_other_texts_are_counted_and_said_and_a_new_source_begins(
    tmp_path: Path, mixed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own: dict[str, Any] = {"phases": phases(4), "checkpoint_every": 5, "schedule": "wsd"}
    first = make_job(tmp_path, make_recipe(mixed, **own), "first")
    run(first)
    two = [{**each, "mix": {"web": 0.5, "en": 0.4, "code": 0.1}} for each in phases(4)]
    recipe = make_sources_recipe(mixed, **{**own, "phases": two}, start_from=checkpoint(first, 5))
    branch = make_sources_job(tmp_path, recipe, "branch")
    with caplog.at_level("INFO"):
        run(branch)

    assert "source web is new: it begins with the first of its" in caplog.text
    assert "the text of that run is left out; its tokens stay counted" in caplog.text
    summary = json.loads((branch.out / "training.json").read_text())
    # Three steps of four sequences.
    read = {name: each["epochs"] * each["sequences"] for name, each in summary["sources"].items()}
    assert read == {
        "web": pytest.approx(6, abs=1),
        "en": pytest.approx(5, abs=1),
        "code": pytest.approx(1, abs=1),
    }

    # Another text of a source goes on where the old one stood.
    caplog.clear()
    again = checkpoint(branch, 8)
    other = make_corpus(tmp_path / "corpus.other", [f"{text} {text}" for text in TEXTS["en"]])
    three = [*two, {**two[1], "steps": 2}]
    longer = recipe.model_copy(
        update={
            "pretrain": Pretrain.model_validate(
                {**recipe.pretrain.model_dump(), "phases": three, "start_from": again}
            )
        }
    )
    job = make_sources_job(tmp_path, longer, "again")
    with caplog.at_level("INFO"):
        run(replace(job, inputs={**job.inputs, "corpus.en": other}))

    assert re.search(
        r"source en is another text than in that run; it goes on at sequence [4567] of ", caplog.text
    )
    assert "source web" not in caplog.text


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
    ("degrees", "processes"),
    [({}, 1), ({"shard": 2}, 2), matrix({"tensor": 2}, 2), matrix({"pipeline": 2}, 2)],
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
