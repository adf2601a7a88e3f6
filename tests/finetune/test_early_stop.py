"""The validation loss, the end that it brings, and runs that resume: all from the trainer's log."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from anadil.finetune.training import TrainingCallback, best_step, is_over
from tests.finetune.short_runs import REPEATED, SETTINGS, lines_of, trained
from tests.finetune.test_run import FOREIGN_WARNINGS
from tests.kit.marks import matrix, slow

pytestmark = FOREIGN_WARNINGS
EARLY_STOP = (*SETTINGS["early stop"], "finetune.epochs=20", "finetune.checkpoint_every=1")


@pytest.fixture(scope="module")
def whole(model_dir: Path, many_chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work directory of a run that stopped early; `out` is its artifact."""
    work = tmp_path_factory.mktemp("stopped")
    trained(model_dir, many_chats, work, *EARLY_STOP)
    return work


def resumed(whole: Path, model: Path, chats: Path, work: Path, damaged: str = "") -> Path:
    """The artifact of another start in a copy of that directory."""
    shutil.copytree(whole, work)
    shutil.rmtree(work / "out")
    if damaged:
        (work / damaged).write_bytes(b"damaged")
    return trained(model, chats, work, *EARLY_STOP)


def test_training_ends_where_the_validation_loss_rises_and_the_best_step_is_the_result(whole: Path) -> None:
    out = whole / "out"

    measured = [line for line in lines_of(out) if "validation_loss" in line]
    best = min(measured, key=lambda line: line["validation_loss"])
    training = json.loads((out / "training.json").read_text())
    assert training["steps"] == best["step"]
    assert training["validation_loss"] == best["validation_loss"]
    assert measured[-1]["step"] == best["step"] + 2
    expected = whole / f"trainer/checkpoint-{best['step']}/adapter_model.safetensors"
    assert (out / "adapter_model.safetensors").read_bytes() == expected.read_bytes()


def test_without_patience_all_steps_are_trained_and_the_last_is_the_result(
    model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    out = trained(model_dir, many_chats, tmp_path / "work", *SETTINGS["validation"], "finetune.lr=0.1")

    training = json.loads((out / "training.json").read_text())
    assert training["steps"] == lines_of(out)[-1]["step"]
    assert training["validation_loss"] == lines_of(out)[-1]["validation_loss"]


HISTORY = [{"step": step, "eval_loss": loss} for step, loss in enumerate([3.0, 2.0, 2.5, 2.0, 2.1], start=1)]


@pytest.mark.parametrize(("patience", "over"), [(None, False), (4, False), (3, True), (1, True)])
def test_training_is_over_after_patience_without_a_lower_loss(patience: int | None, *, over: bool) -> None:
    assert best_step(HISTORY) == 2
    assert is_over(HISTORY, patience) == over
    assert not is_over(HISTORY[:2], patience)
    assert not is_over([{"step": 1, "loss": 3.0}], patience)


@pytest.mark.parametrize(
    "name", ["early stop", slow("noise"), *map(matrix, ("all weights", "DoRA", *REPEATED))]
)
def test_a_killed_run_resumes_to_the_curve_and_the_weights_of_one_that_was_not(
    model_dir: Path, many_chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = (*SETTINGS[name], "finetune.epochs=3")
    undisturbed = trained(model_dir, many_chats, tmp_path / "whole", *settings)
    on_save = TrainingCallback.on_save

    def killed(self: TrainingCallback, args: Any, state: Any, control: Any, **_: object) -> None:
        on_save(self, args, state, control)
        if state.global_step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingCallback, "on_save", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(model_dir, many_chats, tmp_path / "killed", *settings)
    shutil.rmtree(tmp_path / "killed/out")
    again = trained(model_dir, many_chats, tmp_path / "killed", *settings)

    assert (again / "training.jsonl").read_bytes() == (undisturbed / "training.jsonl").read_bytes()
    weights = "merged/model.safetensors"
    assert (again / weights).read_bytes() == (undisturbed / weights).read_bytes()


def test_a_run_that_stopped_early_is_not_trained_again(
    whole: Path, model_dir: Path, many_chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("anadil.finetune.training.train")

    again = resumed(whole, model_dir, many_chats, tmp_path / "work")

    files = [path.relative_to(again) for path in again.rglob("*") if path.is_file()]
    assert Path("merged/model.safetensors") in files
    assert all((again / file).read_bytes() == (whole / "out" / file).read_bytes() for file in files)


def test_a_run_whose_best_checkpoint_is_damaged_starts_before_it(
    whole: Path, model_dir: Path, many_chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = json.loads((whole / "out/training.json").read_text())["steps"]
    damaged = f"trainer/checkpoint-{best}/optimizer.pt"

    again = resumed(whole, model_dir, many_chats, tmp_path / "work", damaged)

    weights = "merged/model.safetensors"
    assert f"checkpoint-{best}, which has the lowest validation loss: " in caplog.text
    assert (again / weights).read_bytes() == (whole / "out" / weights).read_bytes()
