"""What a stage writes for MLflow, and that no server can make it wait."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anadil.recipe.load import parse_recipe
from anadil.runtime import trackers, tracking_spool
from anadil.runtime.mlflow_records import artifact_place, work_of
from anadil.runtime.tracking_spool import (
    SPOOL,
    SPOOL_VARIABLE,
    Tracker,
    has_unsent,
    run_sender,
    run_settings,
    track_stage,
    tracking_uri,
)
from tests.kit.http_server import Reply, Request, http_server

MAX_CALL_S = 0.005
PASSWORD = "hunter2-and-more"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def seconds_of(tracker: Tracker) -> float:
    """The longest of many calls, but for what the machine's scheduler adds to a few."""
    times = []
    for step in range(100):
        started = time.perf_counter()
        tracker.metrics({"loss": 1.0, "lr": 1e-4}, step)
        times.append(time.perf_counter() - started)
    return sorted(times)[90]


def test_without_a_server_named_there_is_no_spool(tmp_path: Path) -> None:
    with track_stage("clean", parse_recipe("", "r"), tmp_path) as tracker:
        tracker.metrics({"kept": 1})
        tracker.end("FINISHED")

    assert list(tmp_path.iterdir()) == []


def test_the_recipe_goes_before_the_environment_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, named, off = (
        parse_recipe("", "r", overrides)
        for overrides in ([], ["tracking.uri=http://a"], ["tracking.uri=off"])
    )

    assert tracking_uri(plain) is None
    assert tracking_uri(plain, "sqlite:///x") == "sqlite:///x"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b")
    assert tracking_uri(plain, "sqlite:///x") == "http://b"
    assert tracking_uri(named) == "http://a"
    assert tracking_uri(off, "sqlite:///x") is None


def test_curves_are_grouped_and_final_figures_are_named_by_their_stage(tmp_path: Path) -> None:
    pretrain, tokenizer = Tracker(tmp_path / "p", "pretrain"), Tracker(tmp_path / "t", "tokenizer")

    pretrain.metrics({"loss": 1, "lr": 1, "tokens_per_s": 1, "validation_bits_per_byte": 1}, 10)
    pretrain.metrics({"loss": 1, "dropped/short": 2})
    tokenizer.metrics({"replace_fertility": 1.7}, 4096)

    lines = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    curves = ["train/loss", "train/lr", "system/tokens_per_s", "validation/bits_per_byte"]
    assert list(lines[0]["values"]) == curves
    assert (list(lines[1]["values"]), lines[1]["step"]) == (["pretrain_loss", "pretrain_dropped/short"], None)
    assert list(json.loads((tmp_path / "t").read_text())["values"]) == ["tokenizer/replace_fertility"]


def test_a_run_is_known_by_what_is_not_the_default() -> None:
    recipe = parse_recipe("", "r", ["seed=3", "pretrain.batch_size=8", "clean.inputs=[a.txt]"])

    assert run_settings(recipe) == {
        "language": "az", "base.model": "meta-llama/Llama-3.2-1B", "seed": "3",
        "pretrain.batch_size": "8", "clean.inputs": '["a.txt"]',
    }  # fmt: skip


def test_inside_a_run_a_stage_writes_to_the_runs_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "spool"))

    with track_stage(
        "clean", parse_recipe("", "r", ["tracking.uri=http://127.0.0.1:9"]), tmp_path
    ) as tracker:
        tracker.metrics({"kept": 1}, 3)

    lines = [json.loads(line) for line in (tmp_path / "spool" / "clean.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "metrics"]
    assert (lines[1]["values"], lines[1]["step"]) == ({"system/kept": 1}, 3)


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "spool"))

    with track_stage("clean", parse_recipe("", "r"), tmp_path) as tracker:
        tracker.metrics({"kept": 1})

    assert not (tmp_path / "spool").exists()


def test_no_call_fails_whatever_it_is_given(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    tracker = Tracker(tmp_path / "spool.jsonl")

    tracker.metrics({"loss": numpy.float32(0.5), "steps": numpy.int64(3), "nan": float("nan")})
    tracker.texts("params", {"path": "data/\udcff", "long": "x" * 10_000})

    metrics, params = (json.loads(line) for line in (tmp_path / "spool.jsonl").read_text().splitlines())
    assert metrics["values"]["loss"] == 0.5
    assert metrics["values"]["steps"] == 3
    assert len(params["values"]["long"]) == 6_000


def test_a_spool_that_cannot_be_written_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(tmp_path / "none" / "spool.jsonl")

    for _ in range(3):
        tracker.metrics({"loss": 1.0})

    assert caplog.text.count("tracking of this stage ends here") == 1


@pytest.mark.parametrize("server", ["silent", "closed"])
def test_a_server_that_does_not_answer_costs_a_stage_2_s_at_its_end_and_nothing_before(
    server: str,
    silent: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tracking_spool.SILENCE_S < 2
    monkeypatch.setattr(tracking_spool, "SILENCE_S", 0.5)
    uri = silent if server == "silent" else "http://127.0.0.1:9"

    with track_stage("pretrain", parse_recipe("", "r", [f"tracking.uri={uri}"]), tmp_path) as tracker:
        call_s = seconds_of(tracker)
        tracker.end("FINISHED")
        ended = time.monotonic()
    took = time.monotonic() - ended

    assert call_s < MAX_CALL_S
    assert took < 6
    assert "MLflow did not take everything; it stays in" in caplog.text
    assert has_unsent(tmp_path / SPOOL)
    assert len((tmp_path / "tracking" / "pretrain.jsonl").read_text().splitlines()) == 102


def test_a_server_that_falls_silent_while_a_stage_waits_for_it_costs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_spool, "SILENCE_S", 0.3)
    monkeypatch.setattr(tracking_spool, "LOOK_EVERY_S", 0.2)
    asked: list[str] = []

    def reply(request: Request) -> Reply:
        asked.append(request.path)
        return Reply(delay_s=60 if len(asked) > 2 else 0)

    with (
        http_server(reply) as port,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process,
    ):
        began = time.monotonic()
        tracking_spool._end(process, f"http://127.0.0.1:{port}", tmp_path / "sent.json")
        took = time.monotonic() - began

    assert len(asked) == 3
    assert took < 3


def test_a_server_that_is_slow_but_answers_the_sender_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, looks = tmp_path / "sent.json", iter(range(9))

    def answers(_uri: str, _within_s: float) -> bool:
        if (look := next(looks)) < 2:  # meanwhile the sender has noted what the server took
            sent.touch()
            os.utime(sent, ns=(look + 1, look + 1))
        return False

    monkeypatch.setattr(tracking_spool, "answers", answers)
    monkeypatch.setattr(tracking_spool, "LOOK_EVERY_S", 0.01)

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        tracking_spool._end(process, "http://127.0.0.1:9", sent)

    assert next(looks) == 3


def test_files_wait_in_the_spool_with_secrets_masked_and_what_is_too_large_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking_spool, "MAX_FILE_BYTES", 5)
    monkeypatch.setenv("HF_TOKEN", "hf_canary_canary")
    (tmp_path / "weights").write_bytes(b"123456")
    (tmp_path / "note").write_bytes(b"12345")
    tracker = Tracker(tmp_path / "spool.jsonl")

    tracker.files(
        {"recipe.yaml": f"a: http://me:{PASSWORD}@x\nb: hf_canary_canary\n", "note": tmp_path / "note"}
    )
    tracker.files({"weights": tmp_path / "weights", "gone": tmp_path / "gone"})
    tracker.texts(
        "params",
        {"uri": f"postgresql://me:{PASSWORD}@db/x", "url": "https://x/y?X-Amz-Signature=canary7&a=1"},
    )

    files, params = (json.loads(line) for line in (tmp_path / "spool.jsonl").read_text().splitlines())
    kept = {name: (tmp_path / trackers.FILES / place).read_text() for name, place in files["values"].items()}
    assert kept == {"recipe.yaml": "a: http://me:***@x\nb: ***\n", "note": "12345"}
    assert params["values"] == {
        "uri": "postgresql://me:***@db/x", "url": "https://x/y?X-Amz-Signature=***&a=1",
    }  # fmt: skip
    assert "weights is not sent (it has 6 bytes, more than 5)" in caplog.text
    assert "gone is not sent" in caplog.text


def test_a_password_is_in_no_argument_of_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    class Watched(real):  # type: ignore[misc,valid-type]
        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", Watched)

    with run_sender(tmp_path, f"http://me:{PASSWORD}@127.0.0.1:9", "az", "flow"):
        pass

    assert len(started) == 1
    assert PASSWORD not in " ".join(started[0])


@pytest.mark.parametrize(
    ("uri", "root", "place"),
    [
        ("sqlite:////data/mlflow.db", "/work", "file:///data/mlflow-artifacts"),
        ("postgresql+psycopg2://me:secret@db/x", "/work", "file:///work/mlflow-artifacts"),
        ("mysql://db/x", "s3://bucket/root", "s3://bucket/root/mlflow-artifacts"),
        ("https://mlflow.example", "/work", None),
        ("arn:aws:sagemaker:x", "/work", None),
    ],
)
def test_artifacts_of_a_database_lie_at_a_place_that_no_current_directory_decides(
    uri: str, root: str, place: str | None
) -> None:
    assert artifact_place(uri, root) == place


def test_a_spool_says_which_work_directory_it_is_of() -> None:
    assert work_of(Path("/work/tracking")) == Path("/work")
    assert work_of(Path("/work/tracking/20261123-021729-1959")) == Path("/work")
