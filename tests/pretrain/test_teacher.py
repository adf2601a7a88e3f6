"""Training that keeps to the base's probabilities: every layout alike, killed or not, with a weight of its own."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError, RecipeError, Stopped
from anadil.core.stages import STAGES
from anadil.pretrain import teacher_weight
from anadil.pretrain.run import run
from anadil.pretrain.short_run import short_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job, Stream
from anadil.tokens.probabilities import StoredProbabilities, TextScore, open_probabilities
from tests.kit.marks import matrix
from tests.kit.pretraining import SignalAt, run_in_child, run_in_several
from tests.kit.sources import PHASES
from tests.kit.teaching import make_teaching_tokenizer, teaching_job, teaching_recipe

STEPS: dict[str, Any] = {"phases": [{**PHASES[1], "steps": 6}], "micro_batch_size": 1}


@pytest.fixture
def taught(mixed: Path) -> Path:
    """The base of `mixed`, beside a tokenizer that lacks some of its tokens."""
    make_teaching_tokenizer(mixed.with_name("tokenizer"))
    return mixed


@pytest.fixture(scope="module")
def alone(inputs: Path, corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Losses and files of a run in one process, which every layout is compared with."""
    folder = tmp_path_factory.mktemp("alone")
    for each in (*corpora.iterdir(), inputs / "untied"):
        (folder / each.name).symlink_to(each)
    make_teaching_tokenizer(folder / "tokenizer")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run(job := teaching_job(folder, teaching_recipe(folder / "untied", **STEPS)))
    torch.set_num_threads(threads)
    return job.out


def lines(out: Path) -> list[dict[str, Any]]:
    text = (out / "training.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["step"]]


def curves(out: Path) -> list[dict[str, float]]:
    """Loss, divergence and its weight of each line, and what sources have of them."""
    names = ("loss", "kl", "teacher_weight")
    return [
        {key: value for key, value in line.items() if key.partition("/")[0] in names} for line in lines(out)
    ]


def test_the_loss_of_a_line_is_that_of_the_text_and_the_divergence_is_beside_it(
    tmp_path: Path, taught: Path, alone: Path
) -> None:
    plain = teaching_recipe(taught, {"en": {}}, **STEPS | {"distillation": {}})
    run(job := teaching_job(tmp_path, plain, "plain"))

    with_teacher, without = curves(alone), curves(job.out)

    assert with_teacher[0]["loss"] == pytest.approx(without[0]["loss"], rel=1e-6)
    assert with_teacher[-1]["loss"] != pytest.approx(without[-1]["loss"], rel=1e-5)
    assert {"kl"} <= set().union(*with_teacher)
    assert "kl" not in set().union(*without)
    summary = json.loads((alone / "training.json").read_text())
    assert summary["distillation"] == {"weight": 0.7}


def test_a_teacher_keeps_the_model_near_to_the_base(tmp_path: Path, taught: Path) -> None:
    steps = STEPS | {"phases": [{**PHASES[1], "steps": 12}]}
    ends = []
    for weight in (0.001, 10):
        run(job := teaching_job(tmp_path, teaching_recipe(taught, weight=weight, **steps), f"of-{weight}"))
        ends.append([line["kl"] for line in curves(job.out) if "kl" in line][-1])

    assert ends[1] < 0.7 * ends[0]


@pytest.mark.parametrize(
    ("degrees", "processes"),
    [
        matrix({}, 2),
        ({"shard": 2}, 2),
        matrix({"context": 2}, 2),
        ({"tensor": 2}, 2),
        matrix({"pipeline": 2}, 2),
        matrix({"shard": 2, "tensor": 2}, 4),
        matrix({"shard": 2, "context": 2}, 4),
        matrix({"shard": 2, "pipeline": 2}, 4),
        matrix({"context": 2, "pipeline": 2}, 4),
        matrix({"tensor": 2, "pipeline": 2}, 4),
        matrix({"tensor": 2, "context": 2}, 4),
        matrix({}, 4),
    ],
)
def test_every_layout_has_the_same_loss_and_divergence(
    tmp_path: Path, taught: Path, alone: Path, degrees: dict[str, int], processes: int
) -> None:
    job = teaching_job(tmp_path, teaching_recipe(taught, parallelism=degrees, **STEPS))

    assert run_in_several(job, processes) == [0] * processes

    for line, expected in zip(curves(job.out), curves(alone), strict=True):
        assert line == pytest.approx(expected, rel=1e-5, abs=1e-8)
    first, expected = curves(job.out)[0], curves(alone)[0]
    assert first == pytest.approx(expected, rel=1e-6, abs=1e-8)


AUTO: dict[str, Any] = {"validate_every": 2, "checkpoint_every": 1, "log_every": 3} | STEPS


def test_a_killed_run_with_an_automatic_weight_goes_on_to_the_same_bits(tmp_path: Path, taught: Path) -> None:
    recipe = teaching_recipe(taught, weight="auto", **AUTO)
    run(whole := teaching_job(tmp_path, recipe, "whole"))

    code = run_in_child(teaching_job(tmp_path, recipe, tracker=SignalAt(3, signal.SIGTERM)))
    run(job := teaching_job(tmp_path, recipe))

    assert code == Stopped.exit_code
    assert curves(job.out) == curves(whole.out)
    one, other = (json.loads((each.out / "training.json").read_text()) for each in (job, whole))
    assert one["distillation"] == other["distillation"]


@pytest.mark.parametrize(("limit", "rises"), [(1e-3, True), (1e3, False)])
def test_the_automatic_weight_rises_over_the_limit_and_falls_below_it(
    tmp_path: Path, taught: Path, caplog: pytest.LogCaptureFixture, limit: float, rises: bool
) -> None:
    recipe = teaching_recipe(taught, weight="auto", **AUTO)
    gate = recipe.evaluate.gate.model_copy(update={"max_retained_ratio": limit})
    recipe = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"gate": gate})})

    with caplog.at_level("INFO"):
        run(job := teaching_job(tmp_path, recipe))

    weights = [line["teacher_weight"] for line in curves(job.out) if "teacher_weight" in line]
    assert len({*weights}) == 3
    assert weights == sorted(weights, reverse=not rises)
    assert "pretrain.distillation.weight: 1 -> " in caplog.text
    found = json.loads((job.out / "training.json").read_text())["distillation"]
    assert found["last"]["step"] == 6
    assert found["last"]["source"] in {"en", "retained.en"}
    assert ("within 0.001 times the base's bits per byte" in caplog.text) == rises
    assert "does not watch code, which the gate judges" in caplog.text
    assert (f"the nearest was {found['nearest']['ratio']:.4g}, after step" in caplog.text) == rises
    assert ("auto ends with" in caplog.text) != rises


def test_the_automatic_weight_compares_with_the_base_in_its_own_vocabulary(
    tmp_path: Path, taught: Path
) -> None:
    # A base in its own vocabulary that has learnt nothing yet is compared with itself.
    shutil.rmtree(tmp_path / "tokenizer")
    from tests.kit.pretraining import make_tokenizer_artifact

    make_tokenizer_artifact(tmp_path / "tokenizer")
    frozen = {"phases": [{**PHASES[1], "steps": 2, "lr": 1e-12}]}
    run(job := teaching_job(tmp_path, teaching_recipe(taught, weight="auto", **AUTO | frozen)))

    found = json.loads((job.out / "training.json").read_text())["distillation"]
    assert found["last"]["ratio"] == pytest.approx(1, rel=1e-5)
    assert curves(job.out)[-1]["kl"] < 1e-4


def with_scores(taught: Path, **scores: TextScore) -> tuple[Recipe, StoredProbabilities]:
    """A recipe with an automatic weight, and probabilities with these scores of the base."""
    recipe = teaching_recipe(taught, weight="auto", **AUTO)
    stream = teaching_job(taught.parent, recipe).streams["probabilities.en"]
    opened = open_probabilities(stream.uri, stream.manifest, {})
    return recipe, replace(opened, facts=replace(opened.facts, scores=scores))


def test_an_automatic_weight_needs_a_text(taught: Path) -> None:
    recipe, empty = with_scores(taught)

    with pytest.raises(RecipeError, match=r"nor evaluate.retained have a document for it. Set a number, or"):
        teacher_weight.TeacherWeight(recipe, {"en": empty}, {})


def with_facts(job: Job, folder: Path, **changes: Any) -> Job:
    """The job with other facts in its probabilities."""
    shutil.copytree(job.streams["probabilities.en"].uri, folder)
    facts = json.loads((folder / "probabilities.json").read_text())
    (folder / "probabilities.json").write_text(json.dumps(facts | changes))
    (folder / "manifest.json").unlink()
    artifact.seal(folder, kind="probabilities", origin={})
    manifest = artifact.read_manifest(str(folder))
    assert manifest is not None
    return replace(job, streams={"probabilities.en": Stream(uri=str(folder), manifest=manifest)})


def stored_scores(job: Job) -> dict[str, Any]:
    """Scores of the base in a job's probabilities."""
    facts = json.loads(Path(job.streams["probabilities.en"].uri, "probabilities.json").read_text())
    return dict(facts["scores"])


@pytest.mark.parametrize("bytes_of_base", [None, 7])
def test_a_retained_text_that_the_base_was_not_scored_on_is_refused(
    tmp_path: Path, taught: Path, bytes_of_base: int | None
) -> None:
    job = teaching_job(tmp_path, teaching_recipe(taught, weight="auto", **AUTO))
    scores = stored_scores(job)
    scored = scores.pop("retained.en")
    if bytes_of_base:
        scores["retained.en"] = scored | {"bytes": bytes_of_base}

    with pytest.raises(
        IntegrityError, match=rf"retained.en .* 1,366 bytes .* on {bytes_of_base or 0}: .* run distill"
    ):
        run(with_facts(job, tmp_path / "other", scores=scores))


def test_the_automatic_weight_rises_for_a_retained_text_alone(tmp_path: Path, taught: Path) -> None:
    job = teaching_job(tmp_path, teaching_recipe(taught, weight="auto", **AUTO))
    scores = stored_scores(job)
    scores["en"]["nats"] *= 1e3
    scores["retained.en"]["nats"] /= 10

    run(job := with_facts(job, tmp_path / "other", scores=scores))

    found = json.loads((job.out / "training.json").read_text())["distillation"]
    assert found["last"]["source"] == "retained.en"
    assert found["weight"] == 8


def test_a_short_run_has_no_teacher(taught: Path) -> None:
    recipe = teaching_recipe(taught, {"web": {"teacher": "base"}})

    assert short_recipe(recipe, 2, taught.with_name("tokenizer")).sources["web"].teacher is None


def test_what_decides_an_automatic_weight_decides_the_model_s_key(taught: Path) -> None:
    def origin(weight: float | str, limit: float, every: int) -> dict[str, str]:
        recipe = teaching_recipe(taught, weight=weight, validate_every=every)
        gate = recipe.evaluate.gate.model_copy(update={"max_retained_ratio": limit})
        evaluate = recipe.evaluate.model_copy(update={"gate": gate})
        recipe = recipe.model_copy(update={"evaluate": evaluate})
        return stage_origin(STAGES["pretrain"], recipe, {}, ())

    assert origin(2, 1.1, 7) == origin(2, 1.2, 8)
    assert len({tuple(origin("auto", *each).items()) for each in ((1.1, 7), (1.2, 7), (1.1, 8))}) == 3


@pytest.mark.parametrize("name", ["base", "tokenizer", "stream", "k"])
def test_probabilities_of_something_else_are_refused_with_both_names(
    tmp_path: Path, taught: Path, name: str
) -> None:
    recipe = teaching_recipe(taught, **STEPS)
    job = teaching_job(tmp_path, recipe)
    facts = json.loads((Path(job.streams["probabilities.en"].uri) / "probabilities.json").read_text())
    ours, theirs = facts[name], 3 if name == "k" else "another one"

    with pytest.raises(IntegrityError) as refusal:
        run(with_facts(job, tmp_path / "other", **{name: theirs}))

    assert refusal.value.exit_code == 5
    assert f"{name} is {theirs}, and this run has {ours}; run distill again" in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": {"en": {}}, "weight": 2}, "no source has `teacher: base`"),
        ({"sources": {"web": {"teacher": "base"}}, "weight": "auto"}, "in another language than az"),
        ({"weight": "auto", "validate_every": 0}, "nothing is measured; set a number, or validate"),
        ({"weight": -1}, "greater than 0"),
        ({"sources": {"en": {"teacher": "me"}}}, "Input should be 'base'"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        teaching_recipe(tmp_path, **changes)
