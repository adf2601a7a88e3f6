"""W&B and TensorBoard get the lines of a run by their own clients, in the process of each stage."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import RecipeError
from anadil.recipe.load import parse_recipe
from anadil.runtime import trackers
from anadil.runtime.tracking_spool import (
    SPOOL_VARIABLE,
    Tracker,
    run_sender,
    track_stage,
    tracker_address,
    tracking_uri,
)
from tests.kit.harness import wait_for
from tests.kit.tracked_run import STEPS, end_pretrain, write_pretrain, write_scores

KEY = "0123456789abcdef0123456789abcdef01234567"
PROJECT = "wandb://az-team/az"


def track_run(work: Path, uri: str, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Path:
    """The folder of a run whose training, evaluation and report were tracked as `anadil run` does."""
    spool = work / "tracking" / "a"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    recipe = parse_recipe("", "r", [f"tracking.uri={uri}"])
    with run_sender(spool, uri, "anadil", "az 2026-11-27 00:40"):
        monkeypatch.setenv(SPOOL_VARIABLE, str(spool))
        Tracker(spool / "run.jsonl").texts("run tags", {"anadil.run": "r1"})
        with track_stage("pretrain", recipe, work) as tracker:
            end_pretrain(write_pretrain(spool, "one", tracker=tracker), "one", work / "made")
        with track_stage("evaluate", recipe, work) as tracker:
            write_scores(spool, "one", work / "made", {"evaluate": tracker})
    return spool


def events(folder: Path) -> list[Any]:
    """Events of the files of a directory."""
    pytest.importorskip("tensorboardX", reason="needs tensorboardX")
    event_pb2 = import_module("tensorboardX.proto.event_pb2")
    data, events = b"".join(path.read_bytes() for path in sorted(folder.glob("*tfevents*"))), []
    while data:
        size = int.from_bytes(data[:8], "little")
        events.append(event_pb2.Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return events


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Curves of a directory by their tags."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                curves.setdefault(value.tag, []).append((event.step, round(value.simple_value, 4)))
    return curves


def records(spool: Path) -> list[Any]:
    """Records of the offline runs of a spool."""
    pytest.importorskip("wandb", reason="needs wandb")
    record = import_module("wandb.proto.wandb_internal_pb2").Record
    records = []
    for path in sorted(spool.glob("wandb/offline-run-*/*.wandb")):
        # LevelDB's log format, behind a header of 7 bytes: a record lies in pieces that end with their block of 32 KiB.
        data, place, pieces = path.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if (room := 32_768 - place % 32_768) < 7:
                place += room
                continue
            size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
            pieces += data[place + 7 : place + 7 + size]
            place += 7 + size
            if kind in (1, 4):
                records.append(record.FromString(pieces))
                pieces = b""
    return records


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("wandb://az", r"names no project of W&B; write wandb://ENTITY/PROJECT"),
        ("wandb:az/project", r"names no project of W&B"),
        ("wandb://az/project/run", r"names no project of W&B"),
        ("wandb://me:hunter2@az/project", r"holds a password"),
        ("tensorboard:s3://bucket/runs", r"names no directory of a machine"),
        ("tensorboard://host:6006", r"names no directory of a machine"),
    ],
)
def test_an_address_that_names_nothing_is_refused(uri: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe("", "r", [f"tracking.uri={uri}"])


def test_the_registry_stays_mlflows(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse_recipe("", "r", [f"tracking.uri={PROJECT}"])

    assert tracker_address(recipe, "sqlite:///x") == PROJECT
    assert tracking_uri(recipe, "sqlite:///x") == "sqlite:///x"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert tracking_uri(recipe) == "http://mlflow:5000"
    assert tracker_address(parse_recipe("", "r")) == "http://mlflow:5000"


def test_tensorboard_gets_curves_by_stage_in_one_directory_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    track_run(tmp_path, f"tensorboard:{tmp_path}/runs", monkeypatch)

    [run] = (tmp_path / "runs").iterdir()
    assert run.name == "az 2026-11-27 00.40"
    curves = scalars(run / "pretrain")
    assert curves["train/loss"] == [(step, round(9.0 / step, 4)) for step in range(1, STEPS + 1)]
    assert scalars(run)["bits_per_byte/adapted"] == [(0, 1.36)]


def test_a_stage_that_begins_again_hides_its_later_steps(tmp_path: Path) -> None:
    recipe = parse_recipe("", "r", [f"tracking.uri=tensorboard:{tmp_path}/runs"])
    for steps in ((1, 2, 3, 2), (2, 3)):
        with track_stage("pretrain", recipe, tmp_path) as tracker:
            for step in steps:
                tracker.metrics({"loss": 1.0}, step)

    [run] = (tmp_path / "runs").iterdir()
    begun = [(each.step, each.session_log.status) for each in events(run / "pretrain")]
    assert [step for step, status in begun if status] == [2, 2]


def test_a_run_goes_to_wandb_offline_without_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb", reason="needs wandb")

    spool = track_run(tmp_path, PROJECT, monkeypatch, WANDB_MODE="offline", WANDB_API_KEY=KEY)

    # Its service writes the end of a run a moment after `finish` has returned.
    wait_for(lambda: sum(each.HasField("exit") for each in records(spool)) == 2)
    lines = records(spool)
    runs = [each.run for each in lines if each.HasField("run")]
    assert {(each.entity, each.project, each.display_name) for each in runs} == {
        ("az-team", "az", "az 2026-11-27 00:40")
    }
    assert len({each.run_group for each in runs}) == 1
    assert {each.job_type for each in runs} == {"pretrain", "evaluate"}
    losses = [
        (json.loads(words["pretrain_step"]), round(json.loads(words["train/loss"]), 4))
        for each in lines
        if each.HasField("history")
        and "train/loss" in (words := {(i.key or i.nested_key[0]): i.value_json for i in each.history.item})
    ]
    assert losses == [(step, round(9.0 / step, 4)) for step in range(1, STEPS + 1)]
    stored = b"".join(path.read_bytes() for path in spool.rglob("*") if path.is_file())
    assert b"bits_per_byte/adapted" in stored
    assert b"anadil.run" in stored
    assert KEY.encode() not in stored + caplog.text.encode()
    assert b"hunter2" not in stored


def test_where_nothing_answers_the_files_stay_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its settings are read once in a process.
    pytest.importorskip("wandb", reason="needs wandb").teardown()

    spool = track_run(tmp_path, PROJECT, monkeypatch, WANDB_BASE_URL="http://127.0.0.1:9")

    assert caplog.text.count("nothing answers at http://127.0.0.1:9") == 1
    assert len([*spool.glob("wandb/offline-run-*")]) == 2


class BrokenClient:
    """A client that fails at its first line."""

    def __init__(self, *_: object) -> None:
        """Take any arguments."""

    def send(self, *_: object) -> None:
        """Fail."""
        raise RuntimeError(f"refused with {KEY}")

    def close(self) -> None:
        """Fail again."""
        raise AssertionError("it was closed after its end")


@pytest.mark.parametrize("uri", [PROJECT, "tensorboard:README.md/none"])
def test_a_tracker_that_fails_ends_no_stage_and_is_said_once(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "WandbRun", BrokenClient)
    monkeypatch.setenv("WANDB_API_KEY", KEY)

    for _ in range(2):
        with track_stage("clean", parse_recipe("", "r", [f"tracking.uri={uri}"]), tmp_path) as tracker:
            tracker.metrics({"kept": 1})
            tracker.end("FINISHED")

    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said.startswith("tracking: ")
    assert "the run goes on without it; " in said
    assert KEY not in said
