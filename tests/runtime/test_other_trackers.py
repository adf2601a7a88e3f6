"""W&B and TensorBoard get the lines of a run through the same spool as MLflow."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import RecipeError
from anadil.recipe.load import parse_recipe
from anadil.runtime.tracking_spool import (
    DESTINATION,
    DONE,
    WANDB_STATE,
    has_unsent,
    run_sender,
    track_stage,
    tracker_address,
    tracking_uri,
)
from tests.kit.tracked_run import STEPS, end_pretrain, write_pretrain, write_scores

KEY = "0123456789abcdef0123456789abcdef01234567"
PROJECT = "wandb://az-team/az"


def write_run(spool: Path) -> None:
    """A closed spool of training, evaluation and report."""
    spool.mkdir(parents=True, exist_ok=True)
    folder = spool.parent.parent / f"made-{spool.name}"
    end_pretrain(write_pretrain(spool, "one"), "one", folder)
    write_scores(spool, "one", folder)


def send(module: str, spool: Path, address: str, **environment: str) -> str:
    """The log of a sender that has sent a closed spool."""
    (spool / DESTINATION).write_text(address)
    command = [sys.executable, "-m", f"anadil.runtime.{module}", str(spool), "--name", "az 2026-11-27 00:40"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert KEY not in done.stdout + done.stderr
    return done.stdout + done.stderr


def events(folder: Path) -> list[Any]:
    """Events of the one file of a directory."""
    pytest.importorskip("tensorboardX", reason="needs tensorboardX")
    event_pb2 = import_module("tensorboardX.proto.event_pb2")
    [path] = folder.glob("*tfevents*")
    data, events = path.read_bytes(), []
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
    """Records of the one offline run of a spool."""
    pytest.importorskip("wandb", reason="needs wandb")
    record = import_module("wandb.proto.wandb_internal_pb2").Record
    [path] = spool.glob("wandb/offline-run-*/*.wandb")
    # LevelDB's log format, behind a header of 7 bytes: a record lies in pieces that end with their block of 32 KiB.
    data, place, records, pieces = path.read_bytes(), 7, [], b""
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


def test_tensorboard_gets_curves_by_stage_and_a_second_try_writes_nothing_twice(tmp_path: Path) -> None:
    spool = tmp_path / "tracking" / "a"
    write_run(spool)

    for _ in range(2):
        (spool / DONE).unlink(missing_ok=True)
        send("tensorboard_sender", spool, f"tensorboard:{tmp_path}/runs")

    assert (spool / DONE).exists()
    [run] = (tmp_path / "runs").iterdir()
    assert run.name == "az 2026-11-27 00.40"
    curves = scalars(run / "pretrain")
    assert curves["train/loss"] == [(step, round(9.0 / step, 4)) for step in range(1, STEPS + 1)]
    assert scalars(run)["bits_per_byte/adapted"] == [(0, 1.36)]


def test_a_stage_that_begins_again_hides_its_later_steps(tmp_path: Path) -> None:
    spool = tmp_path / "tracking" / "a"
    lines = [
        {"kind": "metrics", "values": {"train/loss": 1.0}, "step": step, "time": step}
        for step in (1, 2, 3, 2)
    ]
    spool.mkdir(parents=True)
    (spool / "pretrain.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (spool / "closed").touch()

    send("tensorboard_sender", spool, f"tensorboard:{tmp_path}/runs")

    [run] = (tmp_path / "runs").iterdir()
    begun = [(each.step, each.session_log.status) for each in events(run / "pretrain")]
    assert [step for step, status in begun if status] == [2]


def test_a_run_goes_to_one_run_of_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    spool = tmp_path / "tracking" / "a"
    write_run(spool)

    for _ in range(2):
        (spool / DONE).unlink(missing_ok=True)
        send("wandb_sender", spool, PROJECT, WANDB_MODE="offline", WANDB_API_KEY=KEY)

    assert (spool / DONE).exists()
    lines = records(spool)
    [run] = [each.run for each in lines if each.HasField("run")][:1]
    assert (run.entity, run.project, run.display_name) == ("az-team", "az", "az 2026-11-27 00:40")
    losses = [
        (json.loads(words["pretrain_step"]), round(json.loads(words["train/loss"]), 4))
        for each in lines
        if each.HasField("history")
        and "train/loss" in (words := {(i.key or i.nested_key[0]): i.value_json for i in each.history.item})
    ]
    assert losses == [(step, round(9.0 / step, 4)) for step in range(1, STEPS + 1)]
    stored = b"".join(path.read_bytes() for path in spool.rglob("*") if path.is_file())
    assert b"bits_per_byte/adapted" in stored
    assert KEY.encode() not in stored
    assert b"hunter2" not in stored


def test_without_a_key_the_lines_stay_and_the_log_says_what_to_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)

    with track_stage("clean", parse_recipe("", "r", [f"tracking.uri={PROJECT}"]), tmp_path) as tracker:
        tracker.metrics({"kept": 1})
        tracker.end("FINISHED")

    assert "W&B did not take everything; it stays in" in caplog.text
    assert has_unsent(tmp_path / "tracking")


def test_a_spool_goes_only_to_the_tracker_that_it_was_written_for(tmp_path: Path) -> None:
    waiting, own = tmp_path / "tracking" / "a", tmp_path / "tracking" / "b"
    write_run(waiting)
    (waiting / DESTINATION).write_text(PROJECT)

    with run_sender(own, f"tensorboard:{tmp_path}/runs", "anadil", "b"):
        write_run(own)

    assert (own / DONE).exists()
    assert has_unsent(waiting)
    assert not (waiting / WANDB_STATE).exists()
