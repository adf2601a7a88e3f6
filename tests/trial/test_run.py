import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anadil.artifacts import artifact
from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.pretrain.run import run as pretrain
from anadil.recipe.pretrain import Phase, scaled_phases
from anadil.recipe.sections import Recipe, Trial
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.execute import execute
from anadil.runtime.job import Figures, Job, is_left_out
from anadil.runtime.kfp import parse_executor_input
from anadil.trial import run as trial_run
from anadil.trial.run import FinalistResult, choose_winner, run
from anadil.trial.view import pareto_front

from .conftest import MakeJob, trial_job


@pytest.fixture(scope="session")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Figures]:
    """A trial that nothing interrupts."""
    job = trial_job(root, tmp_path_factory.mktemp("whole"))
    return job, run(job)


def table(folder: Path) -> Any:
    return json.loads((folder / "trial.json").read_text(encoding="utf-8"))


def tried(monkeypatch: pytest.MonkeyPatch, most: int = 99) -> list[str]:
    """Names of the finalists that are trained from here on; the one after `most` is interrupted."""
    names: list[str] = []
    real = trial_run.try_finalist

    def note(job: Job, finalist: Any, *rest: Any) -> Any:
        if len(names) == most:
            raise KeyboardInterrupt
        names.append(finalist.name)
        return real(job, finalist, *rest)

    monkeypatch.setattr(trial_run, "try_finalist", note)
    return names


def test_finalists_are_trained_at_equal_compute_and_the_winners_tokenizer_is_the_artifact(
    whole: tuple[Job, Figures], root: Path
) -> None:
    job, figures = whole
    shown = table(job.out)
    by_name = {each["name"]: each for each in shown["finalists"]}
    winner = root / "tokenizer" / "candidates" / str(figures["winner"])
    assert list(by_name) == ["base", "extend-300", "replace-300"]
    assert by_name["base"]["steps"] == 20
    for each in by_name.values():
        per_step = each["flops"] / each["steps"]
        assert abs(each["flops"] - shown["flops"]) <= per_step / 2
        assert each["interval"][0] <= each["bits_per_byte"] <= each["interval"][1]
        assert set(each["keep"]) == {"en"}
        assert each["words_in_context"] > 0
    assert by_name["extend-300"]["rows"] > by_name["base"]["rows"]
    assert by_name["extend-300"]["steps"] < by_name["base"]["steps"]
    assert shown["winner"] == figures["winner"]
    for file in winner.iterdir():
        assert (job.out / file.name).read_bytes() == file.read_bytes()
    content = {path.relative_to(job.out).as_posix() for path in job.out.rglob("*") if path.is_file()}
    assert content - set(job.varying) == {file.name for file in winner.iterdir()}


def test_a_killed_trial_begins_with_the_first_unfinished_finalist(
    make_job: MakeJob, whole: tuple[Job, Figures], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tried(monkeypatch, most=1)
    with pytest.raises(KeyboardInterrupt):
        run(make_job())
    monkeypatch.undo()
    after = tried(monkeypatch)
    again = make_job()

    run(again)

    first, second = table(whole[0].out), table(again.out)
    for each in [*first["finalists"], *second["finalists"]]:
        del each["seconds"]
    assert before == ["base"]
    assert after == ["extend-300", "replace-300"]
    assert first == second


@pytest.mark.slow
def test_what_a_pod_of_one_strategy_made_is_found_and_the_same(
    root: Path, tmp_path: Path, whole: tuple[Job, Figures], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {word: str(root / word) for word in ("corpus", "tokenizer")}

    def made(**trial: Any) -> Any:
        settings = trial_job(root, tmp_path, **trial).recipe
        storage = settings.storage.model_copy(update={"root": str(tmp_path / "root")})
        settings = settings.model_copy(update={"storage": storage})
        return table(Path(execute(STAGES["trial"], settings, inputs, (), None).uri))

    [own] = made(strategies=["extend"])["finalists"]
    trained = tried(monkeypatch)
    every = made()

    expected = table(whole[0].out)
    found = next(each for each in every["finalists"] if each["strategy"] == "extend")
    assert trained == ["base", "replace-300"]
    assert own == found | {"why_not": None}
    for each in [*every["finalists"], *expected["finalists"]]:
        del each["seconds"]
    assert every == expected


def test_pretrain_takes_the_tokenizer_of_the_trial(root: Path, tmp_path: Path) -> None:
    job = trial_job(root, tmp_path)
    chosen = (root / "tokenizer" / "tokenizer.json").read_bytes()
    other = next(
        folder
        for folder in sorted((root / "tokenizer" / "candidates").iterdir())
        if (folder / "tokenizer.json").read_bytes() != chosen
    )
    trial = tmp_path / "trial"
    shutil.copytree(other, trial)
    artifact.seal(trial, kind="trial", origin={})

    pretrain(replace(job, inputs={**job.inputs, "trial": trial}))

    size = len(json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    written = json.loads((job.out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert len(written) == size


def test_a_pod_of_a_pipeline_tries_the_strategy_that_it_is_given() -> None:
    recipe = Recipe.model_validate({"tokenizer": {"trial": {"steps": 5}}}).model_dump_json()
    values = {"recipe": recipe, "corpus": "c", "tokenizer": "t", "strategy": "extend"}
    text = json.dumps({"inputs": {"parameterValues": values}, "outputs": {}})

    call = parse_executor_input(STAGES["trial"], text)

    assert Recipe.model_validate_json(call.recipe).tokenizer.trial == Trial(steps=5, strategies=("extend",))
    # Beside each other in one run, none may take the failure of another for its own.
    assert call.step == "trial-extend"


def test_without_the_key_there_is_no_trial_and_no_other_key() -> None:
    plain = Recipe.model_validate({"tokenizer": {"strategies": ["base", "extend"]}})
    tries = Recipe.model_validate({"tokenizer": {"strategies": ["base", "extend"], "trial": {"steps": 5}}})

    assert is_left_out(STAGES["trial"], plain)
    assert not is_left_out(STAGES["trial"], tries)
    for stage in ("tokenizer", "pretrain", "report"):
        sections = STAGES[stage].keys
        assert recipe_origin(plain, sections) == recipe_origin(tries, sections)
    sections = STAGES["trial"].keys
    assert recipe_origin(tries, sections).items() >= {("recipe tokenizer.trial.steps", "5")}


def test_a_trial_that_the_recipe_does_not_name_is_refused(make_job: MakeJob) -> None:
    job = make_job()
    settings = job.recipe.tokenizer.model_copy(update={"trial": None})
    object.__setattr__(job, "recipe", job.recipe.model_copy(update={"tokenizer": settings}))

    with pytest.raises(RecipeError, match=r"tokenizer\.trial: not set"):
        run(job)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategies": ["extend"], "trial": {"steps": 5}}, "has one"),
        ({"trial": {"steps": 0}}, "greater than 0"),
        ({"choice": "extend", "trial": {"steps": 5}}, "leaves trial nothing to choose"),
        ({"trial": {"steps": 5, "strategies": ["surgery"]}}, "are not among strategies"),
    ],
)
def test_a_trial_that_can_choose_nothing_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe.model_validate({"tokenizer": settings})


DOCUMENTS = 40


def result(name: str, rows: int, nats: list[float]) -> FinalistResult:
    return FinalistResult(
        name=name,
        strategy="extend",
        steps=1,
        tokens=1,
        flops=1.0,
        rows=rows,
        parameters=rows,
        loss=1.0,
        seconds=1.0,
        nats={"target": nats},
    )


def noisy(mean: float, seed: int) -> list[float]:
    values: list[float] = (mean + np.random.default_rng(seed).normal(0, 10, DOCUMENTS)).tolist()
    return values


@pytest.fixture
def texts() -> Any:
    return SimpleNamespace(num_bytes=lambda _: np.full(DOCUMENTS, 100))


def test_the_fewest_bits_per_byte_win_where_they_are_told_apart(texts: Any) -> None:
    winner = choose_winner([result("small", 1, noisy(150, 0)), result("large", 9, noisy(100, 1))], texts, 0)

    assert winner.name == "large"
    assert winner.differences["small"].low > 0
    assert winner.why_not["small"].endswith("than large")


def test_of_those_that_are_not_told_apart_the_smallest_vocabulary_wins(texts: Any) -> None:
    results = [
        result("small", 1, noisy(101, 0)),
        result("large", 9, noisy(100, 1)),
        result("far", 0, noisy(200, 2)),
    ]

    winner = choose_winner(results, texts, 0)

    assert winner.name == "small"
    assert "not told apart from large" in winner.reason
    assert set(winner.why_not) == {"large", "far"}


@pytest.mark.parametrize(("steps", "expected"), [(20, [5, 15]), (4, [1, 3]), (1, [1]), (2, [2])])
def test_phases_keep_their_share_of_the_steps(steps: int, expected: list[int]) -> None:
    phases = (Phase(trains="embeddings", steps=50, lr=1.0), Phase(trains="all", steps=150, lr=2.0))

    scaled = scaled_phases(phases, steps)

    assert [phase.steps for phase in scaled] == expected
    assert scaled[-1].trains == "all"


def test_the_front_holds_what_no_other_beats_in_every_figure() -> None:
    def entry(bits: float, english: float, parameters: int, words: int) -> dict[str, object]:
        keep = {"en": {"bits_per_byte": english}}
        return {"bits_per_byte": bits, "keep": keep, "parameters": parameters, "words_in_context": words}

    front = pareto_front(
        [
            ("base", entry(3.0, 1.0, 10, 50)),
            ("extend", entry(2.0, 1.1, 12, 90)),
            ("worse", entry(2.1, 1.2, 13, 80)),
            ("same", entry(2.0, 1.1, 12, 90)),
        ]
    )

    assert front == ("base", "extend", "same")
