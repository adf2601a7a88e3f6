"""What a run leaves of itself for whoever lists runs."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.core.errors import BudgetReached, DataError, IntegrityError
from anadil.launch.kfp_steps import finish
from anadil.recipe.sections import Recipe
from anadil.runtime.run_record import (
    StepRecord,
    end_run,
    is_gone,
    new_record,
    note_step,
    read_record,
    read_steps,
    recipe_of,
    record_step,
    record_uri,
    recorded_run,
    step_uri,
    this_process,
)

DONE = StepRecord(status="finished", uri="/x/corpus/1", seconds=2.5, figures={"kept": 7})


def recipe_in(root: Path | str) -> Recipe:
    return Recipe.model_validate({"base": {"model": "tiny"}, "storage": {"root": str(root)}})


def state(root: Path, run: str = "r") -> str:
    return read_record(record_uri(str(root), run)).state


def test_a_run_is_running_until_it_ends_and_keeps_its_recipe(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)

    with recorded_run(recipe, tmp_path, "r", "smoke", "tokenizer") as codes:
        note_step(recipe, "r", "clean", DONE)
        during = read_record(record_uri(str(tmp_path), "r"))
        codes.append(0)
    after = read_record(record_uri(str(tmp_path), "r"))

    assert (during.state, after.state) == ("running", "finished")
    assert (after.recipe, after.stages) == ("smoke", ("clean", "tokenizer"))
    assert after.steps == {"clean": DONE}
    assert recipe_of(str(tmp_path), "r") == recipe.model_dump(mode="json")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "finished"),
        (3, "failed"),
        (7, "budget reached"),
        (130, "stopped"),
        (143, "stopped"),
        (70, "failed"),
    ],
)
def test_an_exit_code_says_how_a_run_ended(tmp_path: Path, code: int, told: str) -> None:
    with recorded_run(recipe_in(tmp_path), tmp_path, "r", "", "report") as codes:
        codes.append(code)

    assert state(tmp_path) == told


def test_an_error_of_the_program_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorded_run(recipe_in(tmp_path), tmp_path, "r", "", "report"):
        raise ZeroDivisionError

    assert state(tmp_path) == "failed"


def test_a_run_whose_process_is_gone_is_stopped(tmp_path: Path) -> None:
    code = "from anadil.runtime.run_record import this_process; print(this_process())"
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    recipe = recipe_in(tmp_path)

    states = [
        new_record(recipe, "r", process=process).state
        for process in (gone.strip(), this_process(), "elsewhere 1 77", f"{this_process()}0")
    ]

    # The last has the id of this process and another start: the id was given away since.
    assert states == ["stopped", "running", "running", "stopped"]
    assert not is_gone("")


def test_steps_on_a_cluster_make_the_record_and_the_last_one_ends_it(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    stages = ("clean", "tokenizer", "encode", "pretrain", "evaluate", "report")

    seen = []
    for stage in stages:
        with record_step(recipe, "kfp-1", stage) as record:
            seen.append(state(tmp_path, "kfp-1"))
            record.uri, record.figures = f"s3://b/{stage}/1", {"seconds": 1.0}

    found = read_record(record_uri(str(tmp_path), "kfp-1"))
    assert set(seen) == {"running"}
    assert found.state == "finished"
    assert found.stages == stages
    assert found.steps["report"].figures == {"seconds": 1.0}


def test_a_step_at_its_budget_ends_the_run_there_until_it_is_tried_again(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    with pytest.raises(BudgetReached), record_step(recipe, "r", "pretrain"):
        raise BudgetReached("8 hours are used up")

    reached = state(tmp_path)
    with record_step(recipe, "r", "pretrain"):
        again = state(tmp_path)

    assert (reached, again) == ("budget reached", "running")


def test_the_exit_handler_ends_a_run_whose_step_left_no_word(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    note_step(recipe, "r", "clean", StepRecord(status="running"))

    finish(recipe, "r")

    found = read_record(record_uri(str(tmp_path), "r"))
    assert found.state == "failed"
    assert "left no word" in found.message


def test_a_pod_of_a_parallel_loop_leaves_the_record_to_its_step(tmp_path: Path) -> None:
    note_step(recipe_in(tmp_path), "r", "trial-extend", DONE)

    assert not (tmp_path / "runs").exists()


def test_a_work_directory_keeps_a_record_of_what_lies_in_a_store(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path / "store")

    with recorded_run(recipe, tmp_path / "work", "r", "smoke", "clean") as codes:
        assert state(tmp_path / "work") == "running"
        note_step(recipe, "r", "clean", DONE)
        codes.append(0)

    kept = read_record(record_uri(str(tmp_path / "work"), "r"))
    assert (kept.state, kept.steps, kept.root) == ("finished", {"clean": DONE}, str(tmp_path / "store"))


def test_a_record_that_cannot_be_written_fails_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs").write_text("a file where a directory should be")

    with (
        caplog.at_level(logging.WARNING),
        recorded_run(recipe_in(tmp_path), tmp_path, "r", "", "clean") as codes,
    ):
        with record_step(recipe_in(tmp_path), "r", "clean") as step:
            step.uri = "s3://bucket/corpus/1"
        codes.append(0)

    assert "r.json: cannot be written" in caplog.text
    assert caplog.text.count("cannot be written") == 1


def test_a_secret_in_a_message_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghij")

    with pytest.raises(DataError), record_step(recipe_in(tmp_path), "r", "clean"):
        raise DataError("401 for hf_abcdefghij")
    end_run(str(tmp_path), "r", 3, "because of hf_abcdefghij")

    for path in (record_uri(str(tmp_path), "r"), step_uri(str(tmp_path), "r", "clean")):
        assert "hf_abcdefghij" not in Path(path).read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"id": "r"})])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)

    with pytest.raises(DataError, match=r"r\.json: not the record of a run"):
        read_record(str(path))


def step_of(root: Path, stage: str = "pretrain") -> StepRecord:
    """The only step of a run that has left a record."""
    (step,) = read_steps(str(root), "r", [stage, "tokenizer"])
    return step


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
    with pytest.raises(type(error)), record_step(recipe_in(tmp_path), "r", "pretrain"):
        raise error

    step = step_of(tmp_path)

    assert (step.status, step.exit_code, step.message) == (status, code, message)


def test_a_group_of_processes_keeps_what_one_of_them_has_recorded(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)

    with record_step(recipe, "r", "pretrain") as outer:
        with pytest.raises(DataError), record_step(recipe, "r", "pretrain"):
            raise DataError("no text")
        outer.exit_code = 3
    failed = step_of(tmp_path)
    with record_step(recipe, "r", "pretrain"), record_step(recipe, "r", "pretrain") as inner:
        inner.uri = "s3://bucket/model/1"
    finished = step_of(tmp_path)

    assert failed.message == "no text"
    assert (finished.status, finished.uri) == ("finished", "s3://bucket/model/1")


def test_a_group_that_was_killed_leaves_its_exit_code(tmp_path: Path) -> None:
    with record_step(recipe_in(tmp_path), "r", "pretrain") as record:
        record.exit_code = 137

    assert (step_of(tmp_path).status, step_of(tmp_path).exit_code) == ("failed", 137)


def test_a_torn_step_is_named(tmp_path: Path) -> None:
    path = Path(step_uri(str(tmp_path), "r", "clean"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"stage": "clean", "colour": 1}))

    with pytest.raises(DataError, match=r"clean\.json: not the status of a step"):
        read_steps(str(tmp_path), "r", ["clean"])
