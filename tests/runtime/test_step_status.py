import json
import logging
from pathlib import Path

import pytest

from anadil.core.errors import DataError, IntegrityError
from anadil.recipe.sections import Recipe
from anadil.runtime.run_record import StepRecord, read_steps, record_step, step_uri


def recipe_in(root: Path) -> Recipe:
    return Recipe.model_validate({"base": {"model": "tiny"}, "storage": {"root": str(root)}})


def test_a_step_that_finished_leaves_its_artifact(tmp_path: Path) -> None:
    with record_step(recipe_in(tmp_path), "run-1", "clean") as record:
        record.uri = "s3://bucket/corpus/1"

    (found,) = read_steps(str(tmp_path), "run-1", ["clean", "tokenizer"])

    assert (found.stage, found.status, found.exit_code) == ("clean", "finished", 0)
    assert found.uri == "s3://bucket/corpus/1"


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (DataError("part-1 is torn"), "failed", 3, "part-1 is torn"),
        (IntegrityError("bytes differ"), "failed", 5, "bytes differ"),
        (KeyboardInterrupt(), "stopped", 130, "interrupted"),
        (ZeroDivisionError("x"), "failed", 70, "bug: ZeroDivisionError: x"),
    ],
)
def test_a_step_that_failed_leaves_why(
    tmp_path: Path, error: BaseException, status: str, code: int, message: str
) -> None:
    with pytest.raises(type(error)), record_step(recipe_in(tmp_path), "run-1", "pretrain"):
        raise error

    (found,) = read_steps(str(tmp_path), "run-1", ["pretrain"])

    assert (found.status, found.exit_code, found.message) == (status, code, message)


def test_a_group_of_processes_does_not_write_over_what_the_one_that_failed_said(tmp_path: Path) -> None:
    with record_step(recipe_in(tmp_path), "r", "pretrain") as outer:
        with pytest.raises(DataError), record_step(recipe_in(tmp_path), "r", "pretrain"):
            raise DataError("no text")
        outer.exit_code = 3

    (found,) = read_steps(str(tmp_path), "r", ["pretrain"])

    assert found.message == "no text"


def test_a_group_of_processes_keeps_the_artifact_that_one_of_them_made(tmp_path: Path) -> None:
    with (
        record_step(recipe_in(tmp_path), "r", "pretrain"),
        record_step(recipe_in(tmp_path), "r", "pretrain") as inner,
    ):
        inner.uri = "s3://bucket/model/1"

    (found,) = read_steps(str(tmp_path), "r", ["pretrain"])

    assert (found.status, found.uri) == ("finished", "s3://bucket/model/1")


def test_a_group_that_was_killed_leaves_its_exit_code(tmp_path: Path) -> None:
    with record_step(recipe_in(tmp_path), "r", "pretrain") as record:
        record.exit_code = 137

    assert read_steps(str(tmp_path), "r", ["pretrain"]) == [
        StepRecord(
            stage="pretrain",
            status="failed",
            exit_code=137,
            seconds=read_steps(str(tmp_path), "r", ["pretrain"])[0].seconds,
        )
    ]


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    with record_step(recipe_in(tmp_path), "", "clean"):
        pass

    assert list(tmp_path.iterdir()) == []


def test_a_secret_in_a_message_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghij")

    with pytest.raises(DataError), record_step(recipe_in(tmp_path), "r", "clean"):
        raise DataError("401 for hf_abcdefghij")

    assert "hf_abcdefghij" not in (tmp_path / "runs/r/clean.json").read_text()


def test_storage_that_cannot_be_written_fails_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs").write_text("a file where a directory should be")

    with caplog.at_level(logging.WARNING), record_step(recipe_in(tmp_path), "r", "clean") as record:
        record.uri = "s3://bucket/corpus/1"

    assert "cannot be written" in caplog.text


def test_a_torn_outcome_is_named(tmp_path: Path) -> None:
    uri = step_uri(str(tmp_path), "r", "clean")
    Path(uri).parent.mkdir(parents=True)
    Path(uri).write_text(json.dumps({"stage": "clean", "colour": 1}))

    with pytest.raises(DataError, match=r"clean\.json: not the status of a step"):
        read_steps(str(tmp_path), "r", ["clean"])
