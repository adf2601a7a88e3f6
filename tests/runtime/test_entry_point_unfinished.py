import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.artifacts import artifact, lease
from anadil.core.errors import RetryableError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.harness import again

PRETRAIN = STAGES["pretrain"]
ORIGIN = {
    "result version": str(PRETRAIN.result_version),
    "recipe seed": "0",
    "recipe base.model": '"tiny"',
    "recipe pretrain.weight_decay": "0.1",
    "model shapes": "0123",
}
"""Of a checkpoint: some names that the artifact's origin does not have."""

Warned = Callable[[Recipe, str | None], list[str]]


def checkpoint(work: Path, step: int, below: str = ".") -> None:
    """What a start without torch sees of a checkpoint."""
    folder = work / "checkpoints" / below / f"step-{step:08}"
    folder.mkdir(parents=True)
    artifact.seal(folder, kind="checkpoint", origin=ORIGIN)


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, str]:
    """A corpus and a tokenizer that are sealed but empty."""
    for word in PRETRAIN.words:
        (tmp_path / word).mkdir()
        artifact.seal(tmp_path / word, kind=word, origin={})
    return {word: str(tmp_path / word) for word in PRETRAIN.words}


@pytest.fixture
def work_of(inputs: dict[str, str]) -> Callable[[Recipe], Path]:
    """The work directory of a recipe."""
    return lambda recipe: planned_artifact(PRETRAIN, recipe, inputs, (), None).work


@pytest.fixture
def warned(
    inputs: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Warned:
    """What a start warns of before its work begins, from which a lock keeps it."""
    monkeypatch.setattr(lease, "PATIENCE_S", 0.0)

    def start(recipe: Recipe, out: str | None) -> list[str]:
        work = planned_artifact(PRETRAIN, recipe, inputs, (), out).work
        with lease.locked(work), pytest.raises(RetryableError, match="another process"):
            execute.execute(PRETRAIN, recipe, inputs, (), out)
        return [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]

    return start


def test_an_unfinished_run_of_other_settings_is_named(
    recipe: Recipe, work_of: Callable[[Recipe], Path], warned: Warned
) -> None:
    old = work_of(recipe)
    checkpoint(old, 4)
    checkpoint(old, 12)

    told = warned(again(recipe, "pretrain.weight_decay=0.3"), None)

    assert "\n".join(told) == (
        f"{old}: an unfinished run has checkpoints here up to step-00000012, which this run does not use: "
        "recipe pretrain.weight_decay 0.1 -> 0.3. To resume from them, start that run again with its own recipe "
        f"and inputs. If nobody needs them, remove {old}"
    )


def test_an_unfinished_run_of_another_place_can_be_renamed(
    recipe: Recipe, work_of: Callable[[Recipe], Path], warned: Warned
) -> None:
    new = work_of(recipe)
    old = new.with_name("0123456789abcdef.work")
    checkpoint(old, 12)

    told = warned(recipe, None)
    shutil.rmtree(new, ignore_errors=True)
    old.rename(new)

    assert len(told) == 1
    assert "does not use: an input, the base model or the place is another" in told[0]
    assert f"stop this run, remove {new}, rename {old} to it, start again" in told[0]
    assert warned(recipe, None) == told  # silent since then


def test_a_run_that_goes_on_is_silent_about_its_neighbours(
    recipe: Recipe, work_of: Callable[[Recipe], Path], warned: Warned
) -> None:
    new = work_of(recipe)
    checkpoint(new, 4, below="0123/rank-0")
    checkpoint(new.with_name("0123456789abcdef.work"), 12)

    told = warned(recipe, None)

    assert told == []


def test_a_neighbour_that_is_finished_or_has_no_checkpoint_is_not_named(
    recipe: Recipe, work_of: Callable[[Recipe], Path], warned: Warned
) -> None:
    root = work_of(recipe).parent
    checkpoint(root / "finished.work", 12)
    (root / "finished").mkdir()
    artifact.seal(root / "finished", kind="model", origin={})
    (root / "damaged.work" / "checkpoints" / "step-00000004.damaged").mkdir(parents=True)
    (root / "damaged.work" / "checkpoints" / "step-00000004.damaged" / "manifest.json").write_text("{}")

    told = warned(recipe, None)

    assert told == []


def test_a_neighbour_that_is_at_work_is_not_named(
    recipe: Recipe, work_of: Callable[[Recipe], Path], warned: Warned
) -> None:
    root = work_of(recipe).parent
    for name in ("live", "killed"):
        checkpoint(root / f"{name}.work", 12)
        (root / f"{name}.work" / "lock").touch()

    with lease.locked(root / "live.work"):
        told = warned(recipe, None)

    assert len(told) == 1
    assert told[0].startswith(f"{root}/killed.work: an unfinished run has checkpoints here")
    assert "more directories" not in told[0]


def test_the_furthest_of_several_is_named_even_where_its_manifest_is_damaged(
    recipe: Recipe, work_of: Callable[[Recipe], Path], warned: Warned
) -> None:
    root = work_of(recipe).parent
    for number in (1, 2, 3):
        checkpoint(root / f"{number}.work", 4 * number, below="0123/rank-0")
    (root / "3.work/checkpoints/0123/rank-0/step-00000012/manifest.json").write_text("no manifest")

    told = warned(recipe, None)

    assert len(told) == 1
    assert told[0].startswith(
        f"{root}/3.work: an unfinished run has checkpoints here up to step-00000012 (and 2 more directories"
    )


def test_with_artifacts_on_s3_the_directories_of_the_shared_disk_are_looked_at(
    recipe: Recipe, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: Warned
) -> None:
    monkeypatch.setenv("ANADIL_WORK", str(tmp_path / "shared"))
    old = tmp_path / "shared" / "0123456789abcdef"
    checkpoint(old, 12)

    told = warned(again(recipe, f"storage.root={bucket}/runs", "seed=8"), None)

    assert len(told) == 1
    assert told[0].startswith(f"{old}: an unfinished run has checkpoints here up to step-00000012, which")
    assert "recipe seed 0 -> 8" in told[0]
