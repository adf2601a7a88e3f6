import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import s3
from anadil.cli import main
from anadil.core.errors import DataError, RecipeError
from anadil.estimate.instances import machines
from anadil.recipe.sections import Recipe
from anadil.release.runs import Run, age, find_run, list_runs
from anadil.runtime.run_record import StepRecord, _write, new_record, record_uri, this_process

FIGURES: dict[str, Any] = {"base_bits_per_byte": 0.683, "bits_per_byte": 0.58, "released": "adapted"}
SCORED = StepRecord(status="finished", uri="s3://b/scores/1", seconds=1_800, figures=FIGURES)
TRAINED = StepRecord(status="finished", uri="s3://b/model/1", seconds=7_200)


def recipe_in(root: str, **more: object) -> Recipe:
    data = {"base": {"model": "tiny"}, "storage": {"root": root}, "tracking": {"uri": "off"}}
    return Recipe.model_validate(data | more)


def put(root: Path | str, run: str, *, name: str = "smoke", minutes: float = 0, **changes: Any) -> None:
    """A run that began some minutes ago."""
    record = new_record(recipe_in(str(root)), run, name=name, until="evaluate")
    record = replace(record, started=record.started - minutes * 60, **changes)
    _write(record_uri(str(root), run), record)


def test_a_list_says_state_recipe_time_cost_and_score(tmp_path: Path) -> None:
    steps = {"pretrain": TRAINED, "evaluate": SCORED}
    put(tmp_path, "a", minutes=180, steps=steps, instance="ml.p5.48xlarge", nodes=2)

    (run,) = list_runs(tmp_path)

    assert (run.state, run.recipe, run.stage, run.progress) == ("finished", "smoke", "evaluate", "2 of 5")
    assert (run.seconds, run.bits_per_byte, run.released) == (9_000, 0.58, "adapted")
    price = next(each.on_demand for each in machines() if each.name == "p5.48xlarge")
    hours = 2 * 2 + 0.5  # two nodes train, one evaluates
    assert run.dollars == pytest.approx(hours * (price or 0.0))
    assert run.artifacts == {"model": "s3://b/model/1", "scores": "s3://b/scores/1"}


def test_the_latest_run_stands_first_and_older_ones_are_counted(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path, f"run-{number}", minutes=60 - number)

    runs = list_runs(tmp_path, limit=2)

    assert [run.id for run in runs] == ["run-4", "run-3"]
    assert runs.hidden == 3


def test_a_run_in_progress_is_running_and_its_time_goes_on(tmp_path: Path) -> None:
    step = StepRecord(status="running")
    steps = {"clean": StepRecord(status="finished"), "tokenizer": step}
    put(tmp_path, "now", process=this_process(), steps=steps)
    put(tmp_path, "killed", process=f"{this_process().split()[0]} 4194399 5", steps={"clean": step})
    put(tmp_path, "far", process="elsewhere 1 5", steps={"clean": step})

    found = {run.id: run for run in list_runs(tmp_path)}

    assert {name: run.state for name, run in found.items()} == {
        "now": "running", "killed": "stopped", "far": "running",
    }  # fmt: skip
    assert found["now"].stage == "tokenizer"
    assert "run the same command again" in found["killed"].message


def test_damaged_records_stand_beside_whole_ones(tmp_path: Path) -> None:
    put(tmp_path, "whole")
    for name, text in (("torn", '{"id": "torn"'), ("empty", ""), ("other", "[1]")):
        (tmp_path / "runs" / f"{name}.json").write_text(text)
    (tmp_path / "runs" / "stray.txt").write_text("x")
    (tmp_path / "runs" / "some-folder").mkdir()

    states = {run.id: run.state for run in list_runs(tmp_path)}

    assert states == {"whole": "running", "torn": "damaged", "empty": "damaged", "other": "damaged"}


def test_a_store_with_a_thousand_runs_takes_few_requests(bucket: str, tmp_path: Path) -> None:
    client = s3.s3_client()
    for number in range(1_000):  # straight into the server's memory; over HTTP it would take a minute
        record = new_record(recipe_in(bucket), f"run-{number:04}", name="smoke")
        if number in (0, 999):
            _write(record_uri(bucket, record.id), record)
        else:
            _put_object(bucket, f"runs/run-{number:04}.json")
        _put_object(bucket, f"runs/run-{number:04}/clean.json")
    calls: list[str] = []
    client.meta.events.register("before-call.s3", lambda model, **_: calls.append(model.name))

    runs = list_runs(None, bucket, limit=20)

    assert len(runs) == 20
    assert runs.hidden == 980
    assert calls.count("ListObjectsV2") == 2
    assert len(calls) == 2 + 20


def _put_object(bucket: str, key: str) -> None:
    from moto.s3.models import s3_backends

    backend = next(iter(s3_backends.values()))["aws"]
    backend.put_object(bucket.removeprefix("s3://"), key, b"{}")


def test_a_run_that_both_places_know_is_listed_once_as_it_was_written_last(tmp_path: Path) -> None:
    put(tmp_path / "work", "r")
    put(tmp_path / "store", "r", exit_code=0)

    runs = list_runs(tmp_path / "work", str(tmp_path / "store"))

    assert [(run.id, run.state) for run in runs] == [("r", "finished")]


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(tmp_path: Path) -> None:
    put(tmp_path, "20261123-021729-1959")
    put(tmp_path, "20261123-031729-2001")

    assert find_run("20261123-021729-1959", tmp_path).id == find_run("20261123-02", tmp_path).id
    with pytest.raises(RecipeError, match="several begin so"):
        find_run("20261123", tmp_path)
    with pytest.raises(DataError, match="nor a run of"):
        find_run("2026", tmp_path / "none")


def test_a_list_without_runs_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.main(["list", "--work", str(tmp_path / "none"), "-o", "json"])

    told = capsys.readouterr()
    assert code == 0
    assert json.loads(told.out) == []
    assert f"anadil run --work {tmp_path / 'none'}" in told.err


def test_a_list_is_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "good", steps={"evaluate": SCORED})
    put(tmp_path, "bad", exit_code=3, message="part-1\nis torn")

    assert main.main(["list", "--work", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert main.main(["list", "--work", str(tmp_path), "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    assert table.splitlines()[0].split()[:4] == ["id", "state", "recipe", "age"]
    assert "0.6830 to 0.5800" in table
    assert "part-1 is torn" in table
    assert {run["id"]: run["state"] for run in listed} == {"good": "finished", "bad": "failed"}
    assert set(listed[0]) == {*Run.__slots__, "name", "tags"}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--root", "gs://b"], 4, "storage gs:// is not supported"),
        (["--work", "{file}"], 2, "--work: {file} is a file, not a directory"),
        (["--root", "{file}/x"], 2, "--root: {file} is a file, not a directory"),
        (["--root", "s3://"], 4, "s3://: names no bucket, write s3://bucket/key"),
    ],
)
def test_a_wrong_place_is_told(
    words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()

    ended = main.main(["list", "--work", str(tmp_path / "w"), *(word.format(file=file) for word in words)])

    assert ended == code
    assert told.format(file=file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "told"), [(-3, "0 s"), (59, "59 s"), (61, "1 min"), (7_300, "2 h"), (200_000, "2 d")]
)
def test_an_age_has_one_unit(seconds: float, told: str) -> None:
    assert age(seconds) == told
