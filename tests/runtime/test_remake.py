"""A finished or unfinished training that another program made: asked for, not made again."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.artifacts import artifact, lease
from anadil.cli import main
from anadil.core.errors import RecipeError, RetryableError
from anadil.core.stage import Stage
from anadil.core.stages import STAGES
from anadil.launch import launcher
from anadil.launch.job import TrainingJob
from anadil.recipe.sections import Recipe
from anadil.runtime import execute, lookup
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.harness import again

PRETRAIN = STAGES["pretrain"]
RAISED = dataclasses.replace(PRETRAIN, result_version=PRETRAIN.result_version + 1)
Start = Callable[..., None]


@pytest.fixture
def inputs(recipe: Recipe) -> dict[str, str]:
    """A corpus and a tokenizer below `storage.root`, sealed with origins of their own."""
    found = {}
    for word in PRETRAIN.words:
        folder = Path(str(recipe.storage.root)) / word / "first"
        folder.mkdir(parents=True)
        (folder / "text").write_text(word)
        artifact.seal(folder, kind=word, origin={"stage": word, "result version": "1", "recipe x": "1"})
        found[word] = str(folder)
    return found


@pytest.fixture
def finished(recipe: Recipe, inputs: dict[str, str]) -> Path:
    """A finished model of `recipe`, as this program would have made it."""
    wanted = planned_artifact(PRETRAIN, recipe, inputs, (), None)
    return seal(Path(wanted.target), wanted.origin)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts pre-training; ends with the error of a lock where the work would begin."""
    monkeypatch.setattr(lease, "PATIENCE_S", 0.0)

    def run(stage: Stage, recipe: Recipe, inputs: dict[str, str], out: str | None = None) -> None:
        work = planned_artifact(stage, recipe, inputs, (), out).work
        with lease.locked(work):
            execute.execute(stage, recipe, inputs, (), out)

    return run


def seal(folder: Path, origin: dict[str, str], kind: str = "model") -> Path:
    folder.mkdir(parents=True)
    program = {"version": "0.0.9", "image": "", "source": "00"}
    artifact.seal(folder, kind=kind, origin=origin, program=program)
    return folder


def checkpoint(work: Path, origin: dict[str, str]) -> Path:
    return seal(work / "checkpoints" / "step-00000012", origin, "checkpoint").parents[1]


def begun(start: Start, *arguments: object) -> bool:
    with pytest.raises(RetryableError, match="another process"):
        start(*arguments)
    return True


def test_a_raised_result_version_does_not_remake_a_finished_model_unasked(
    recipe: Recipe, inputs: dict[str, str], finished: Path, start: Start
) -> None:
    with pytest.raises(RecipeError) as caught:
        start(RAISED, recipe, inputs)

    assert str(caught.value) == (
        f"{finished}: a finished model of the same recipe and inputs, made by anadil 0.0.9 with result version {PRETRAIN.result_version}; "
        f"this program has {RAISED.result_version}. Making it again costs a whole training: add --remake (or set ANADIL_REMAKE=1) if that "
        "is wanted; to keep it, give its URI to the next stage as --model, or another storage.root to this run"
    )


@pytest.mark.usefixtures("finished")
def test_remake_recipe_or_place_of_its_own_make_it(
    recipe: Recipe, inputs: dict[str, str], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun(start, RAISED, again(recipe, "seed=8"), inputs)
    assert begun(start, RAISED, recipe, inputs, str(tmp_path / "mine"))
    monkeypatch.setenv("ANADIL_REMAKE", "1")
    assert begun(start, RAISED, recipe, inputs)


def test_another_input_makes_it_unless_the_program_made_that_other(
    recipe: Recipe, inputs: dict[str, str], finished: Path, start: Start
) -> None:
    """A release that raises clean's version too gives another corpus: nobody asked for another model."""
    text = {"stage": "corpus", "result version": "1", "recipe x": "2"}
    for number, origin in enumerate([text, {**text, "recipe x": "1", "result version": "2"}]):
        folder = Path(str(recipe.storage.root)) / "corpus" / f"other-{number}"
        folder.mkdir()
        (folder / "text").write_text(f"other {number}")
        artifact.seal(folder, kind="corpus", origin=origin)

    other, remade = ({**inputs, "corpus": f"{recipe.storage.root}/corpus/other-{n}"} for n in (0, 1))

    assert begun(start, PRETRAIN, recipe, other)
    with pytest.raises(RecipeError, match=f"{finished}: a finished model of the same recipe and inputs"):
        start(PRETRAIN, recipe, remade)


def test_an_unfinished_run_of_another_program_is_not_begun_anew_unasked(
    recipe: Recipe, inputs: dict[str, str], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = planned_artifact(PRETRAIN, recipe, inputs, (), None)
    names = {name: text for name, text in wanted.origin.items() if name.startswith(("recipe ", "result"))}
    folder = checkpoint(wanted.work.with_name("0123456789abcdef.work"), names)

    with pytest.raises(RecipeError) as caught:
        start(RAISED, recipe, inputs)

    assert str(caught.value) == (
        f"{folder}: an unfinished run of the same recipe has checkpoints here, made by anadil 0.0.9 "
        f"with result version {PRETRAIN.result_version}; this program has {RAISED.result_version}. "
        "This program cannot resume from them: finish that run with the program that began it, or add --remake "
        "(or set ANADIL_REMAKE=1) to start over"
    )
    assert begun(start, RAISED, again(recipe, "seed=8"), inputs)
    assert begun(start, RAISED, again(recipe, "base.model=meta-llama/Llama-3.2-1B"), inputs)
    monkeypatch.setenv("ANADIL_REMAKE", "1")
    assert begun(start, RAISED, recipe, inputs)


@pytest.mark.usefixtures("finished")
def test_a_run_that_was_begun_goes_on_without_being_asked_again(
    recipe: Recipe, inputs: dict[str, str], start: Start
) -> None:
    checkpoint(planned_artifact(RAISED, recipe, inputs, (), None).work, {})

    assert begun(start, RAISED, recipe, inputs)


@pytest.mark.usefixtures("finished")
def test_a_cheap_stage_is_made_again_by_itself(recipe: Recipe, inputs: dict[str, str], start: Start) -> None:
    cheap = dataclasses.replace(RAISED, training=None)

    assert begun(start, cheap, recipe, inputs)
    assert {stage.name for stage in STAGES.values() if stage.costly} == {"pretrain", "finetune"}


@pytest.mark.usefixtures("finished")
def test_a_launcher_asks_before_it_starts_machines(
    recipe: Recipe, inputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES, "pretrain", RAISED)
    asked = launcher.LaunchRequest(stage="pretrain", recipe=recipe, inputs=inputs)

    with pytest.raises(RecipeError, match="add --remake"):
        launcher.launch_job(asked)


def test_remake_reaches_the_process_that_trains(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = TrainingJob(stage="pretrain", recipe=recipe, inputs={}, target=str(tmp_path / "m"))
    monkeypatch.delenv("ANADIL_REMAKE", raising=False)

    before = job.arguments
    monkeypatch.setenv("ANADIL_REMAKE", "")  # so that the next line is taken back
    lookup.allow_remake()

    assert "--remake" not in before
    assert job.arguments[-1] == "--remake"


@pytest.mark.parametrize("command", ["run", "pretrain", "finetune", "launch", "submit", "clean", "evaluate"])
def test_every_command_that_may_train_takes_remake_and_no_other(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main([command, "--help"])

    assert ("--remake" in capsys.readouterr().out) == (command not in ("clean", "evaluate"))
