"""Curves and texts of a step in progress, beside the record of its run."""

import json
import logging
import time
from pathlib import Path

import pytest

from anadil.recipe.sections import Recipe
from anadil.runtime import live_copy
from anadil.runtime.tracking_spool import PIPELINE_RUN, SPOOL_VARIABLE, track_stage
from tests.kit.watching import put_record, watching


def recipe_of(root: str) -> Recipe:
    return Recipe.model_validate({"storage": {"root": root}, "tracking": {"uri": "off"}})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_copy, "EVERY_S", 0.05)
    monkeypatch.delenv(SPOOL_VARIABLE, raising=False)
    monkeypatch.setenv(PIPELINE_RUN, "20260101-120000-1")


def test_a_step_in_a_pod_is_followed_from_the_record_of_its_run(tmp_path: Path) -> None:
    root, work = tmp_path / "root", tmp_path / "pod"
    work.mkdir()
    run = put_record(root, stages=("pretrain",))
    texts = {"step": 0, "texts": [{"prompt": "Bakı", "text": "şəhəri"}]}

    with track_stage("pretrain", recipe_of(str(root)), work), watching(root) as pages:
        (work / "training.jsonl").write_text('{"step": 1, "loss": 4.5}\n')
        (work / "texts.jsonl").write_text(json.dumps(texts, ensure_ascii=False) + "\n", encoding="utf-8")
        deadline = time.monotonic() + 10
        while "şəhəri" not in (text := pages.ask(f"/run/{run}").text) and time.monotonic() < deadline:
            time.sleep(0.05)

    assert "[1.0, 4.5]" in text
    assert "şəhəri" in text


def test_the_last_lines_are_copied_at_the_end(tmp_path: Path) -> None:
    with track_stage("pretrain", recipe_of(str(tmp_path / "root")), tmp_path):
        (tmp_path / "training.jsonl").write_text('{"step": 9}\n')

    copy = tmp_path / "root/runs/20260101-120000-1/pretrain.jsonl"
    assert copy.read_text() == '{"step": 9}\n'


def test_a_run_of_this_machine_copies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "spool"))

    with track_stage("pretrain", recipe_of(str(tmp_path / "root")), tmp_path):
        (tmp_path / "training.jsonl").write_text('{"step": 9}\n')

    assert not (tmp_path / "root").exists()


def test_a_copy_that_fails_ends_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "root").write_text("a file")
    with (
        caplog.at_level(logging.WARNING),
        track_stage("pretrain", recipe_of(str(tmp_path / "root")), tmp_path),
    ):
        (tmp_path / "training.jsonl").write_text('{"step": 9}\n')

    [record] = caplog.records
    assert "curves of the step in progress are not copied any more" in record.getMessage()
