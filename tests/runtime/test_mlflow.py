import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anadil.recipe.load import parse_recipe
from anadil.runtime import mlflow_spool
from anadil.runtime.mlflow_sender import Sender
from anadil.runtime.mlflow_spool import (
    CLOSED,
    DONE,
    SPOOL,
    SPOOL_VARIABLE,
    Tracker,
    has_unsent,
    run_sender,
    run_settings,
    track_stage,
    tracking_uri,
)

MAX_CALL_S = 0.005
PASSWORD = "hunter2-and-more"
PARENT = "(select run_uuid from runs where name = 'flow')"


def send(spool: Path, uri: str) -> "subprocess.CompletedProcess[str]":
    """Run the real sender to its end."""
    module = "anadil.runtime.mlflow_sender"
    command = [sys.executable, "-m", module, str(spool), "--experiment", "az", "--name", "flow"]
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def fill(spool: Path) -> None:
    """The lines of a clean stage that ended and of a pretrain stage that failed."""
    spool.mkdir(parents=True)
    clean, pretrain = Tracker(spool / "clean.jsonl"), Tracker(spool / "pretrain.jsonl", "pretrain")
    clean.start()
    clean.params({"clean.minhash_bands": 14, "clean.inputs": '["a.jsonl"]'})
    clean.tags({"anadil.artifact": "s3://bucket/corpus/1"})
    clean.metrics({"kept": 74, "docs_per_s": 165.7})
    clean.run_params({"language": "az", "base.model": "tiny"})
    clean.end("FINISHED")
    pretrain.start()
    pretrain.params({"lr": 1})
    pretrain.params({"lr": 2})  # MLflow refuses to change one
    with (spool / "pretrain.jsonl").open("a") as file:
        file.write('{"kind": "metrics", "val{"kind": "start"}\n')  # what a kill in mid-write leaves
    for step in range(1, 6):
        pretrain.metrics(
            {"loss": 9.0 / step, "refused: {}": 1, "time_share/step": 0.9, "validation_bits_per_byte": 2.0},
            step,
        )
    for _ in range(2):  # as evaluate and report say what both know
        pretrain.run_params({"language": "az"})
        pretrain.run_metrics({"bits_per_byte/adapted": 1.25})
        pretrain.metrics({"loss": 1.5})
        time.sleep(0.002)
    pretrain.end("FAILED")
    (spool / CLOSED).touch()


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
    assert (list(lines[1]["values"]), lines[1]["step"]) == (
        ["pretrain_loss", "pretrain_dropped/short"],
        None,
    )
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
    tracker.params({"path": "data/\udcff", "long": "x" * 10_000})

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
def test_a_server_that_does_not_answer_costs_a_stage_nothing(
    server: str,
    silent: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mlflow_spool, "PATIENCE_S", 0.5)
    uri = silent if server == "silent" else "http://127.0.0.1:9"

    started = time.monotonic()
    with track_stage("pretrain", parse_recipe("", "r", [f"tracking.uri={uri}"]), tmp_path) as tracker:
        call_s = seconds_of(tracker)
        tracker.end("FINISHED")
    took = time.monotonic() - started

    assert call_s < MAX_CALL_S
    assert took < 5
    assert "MLflow did not take everything; it stays in" in caplog.text
    assert has_unsent(tmp_path / SPOOL)
    assert len((tmp_path / "tracking" / "pretrain.jsonl").read_text().splitlines()) == 102


def test_a_password_is_in_no_argument_of_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    class Watched(real):  # type: ignore[misc,valid-type]
        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    monkeypatch.setattr(mlflow_spool, "PATIENCE_S", 0.1)

    with run_sender(tmp_path, f"http://me:{PASSWORD}@127.0.0.1:9", "az", "flow"):
        pass

    assert len(started) == 1
    assert PASSWORD not in " ".join(started[0])


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A spool that met a closed port, then a database, then lost the memory of its last half."""
    base = tmp_path_factory.mktemp("history")
    spool, database = base / "spools" / "first", base / "mlflow.db"
    fill(spool)
    away = send(spool, f"http://me:{PASSWORD}@127.0.0.1:9")
    kept = not (spool / DONE).exists()
    # The next run, with a spool of its own, finds the first beside it.
    second = base / "spools" / "second"
    second.mkdir()
    Tracker(second / "clean.jsonl").start()
    (second / CLOSED).touch()
    there = send(second, f"sqlite:///{database}")
    state = json.loads((spool / "sent.json").read_text())
    state["offsets"]["pretrain.jsonl"] = 0
    (spool / "sent.json").write_text(json.dumps(state))
    (spool / DONE).unlink()
    again = send(spool, f"sqlite:///{database}")
    return {"away": away, "kept": kept, "there": there, "again": again, "database": database, "spool": spool}


def rows(history: dict[str, Any], query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(history["database"]) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_server_that_is_away_is_a_warning_without_the_password(history: dict[str, Any]) -> None:
    away = history["away"]

    assert away.returncode == 1
    assert "MLflow is away" in away.stderr
    assert PASSWORD not in away.stderr
    assert "Traceback" not in away.stderr
    assert history["kept"]


@pytest.mark.slow
def test_the_next_sender_sends_what_stayed_in_the_spool_beside_it(history: dict[str, Any]) -> None:
    assert history["there"].returncode == 0, history["there"].stderr
    assert (history["spool"] / DONE).exists()
    found = rows(history, "select name, status from runs order by start_time, name")
    assert sorted(found) == [
        ("clean", "FINISHED"),
        ("clean", "KILLED"),
        ("flow", "FAILED"),
        ("flow", "KILLED"),
        ("pretrain", "FAILED"),
    ]
    assert rows(history, "select distinct name from experiments where name = 'az'") == [("az",)]
    parents = rows(
        history,
        "select child.name, parent.name from runs child join tags t on t.run_uuid = child.run_uuid "
        "and t.key = 'mlflow.parentRunId' join runs parent on parent.run_uuid = t.value",
    )

    assert sorted(parents) == [("clean", "flow"), ("clean", "flow"), ("pretrain", "flow")]


@pytest.mark.slow
def test_params_tags_and_metrics_arrive_at_the_stage_and_what_compares_runs_at_their_parent(
    history: dict[str, Any],
) -> None:
    params = rows(history, f"select key, value from params where run_uuid not in {PARENT} order by key")
    tags = rows(history, "select value from tags where key = 'anadil.artifact'")
    metrics = rows(history, "select key, value from metrics where key in ('kept', 'docs_per_s') order by key")

    of_runs = rows(history, f"select key, value from params where run_uuid in {PARENT} order by key")
    compared = rows(history, f"select key, value, step from metrics where run_uuid in {PARENT}")

    assert params == [("clean.inputs", '["a.jsonl"]'), ("clean.minhash_bands", "14"), ("lr", "1")]
    assert tags == [("s3://bucket/corpus/1",)]
    assert metrics == [("docs_per_s", 165.7), ("kept", 74.0)]
    assert of_runs == [("base.model", "tiny"), ("language", "az")]
    assert compared == [("bits_per_byte/adapted", 1.25, 0)]


@pytest.mark.slow
def test_no_key_has_two_meanings(history: dict[str, Any]) -> None:
    """A curve must not begin with its end, nor a final figure be a curve."""
    found = rows(
        history,
        "select m.key, min(step), count(*) from metrics m join runs r on r.run_uuid = m.run_uuid "
        "where r.name = 'pretrain' group by m.key order by m.key",
    )

    assert found == [
        ("pretrain_loss", 0, 1), ("system/time_share/step", 1, 5), ("train/loss", 1, 5), ("validation/bits_per_byte", 1, 5),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_experiment_opens_as_one_of_training(history: dict[str, Any]) -> None:
    tags = rows(history, "select value from experiment_tags where key = 'mlflow.experimentKind'")

    assert tags == [("custom_model_development",)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_final_figures_outlive_a_server_that_goes_away_while_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    spool = tmp_path / "spool"
    spool.mkdir()
    Tracker(spool / "clean.jsonl").metrics({"kept": 74})  # without a start: the run is made when it is sent
    (spool / CLOSED).touch()
    first = Sender(spool, "az", "flow")

    def away(*_: object) -> None:
        raise OSError("the server is gone")

    first.client.log_batch = away
    with pytest.raises(OSError, match="the server is gone"):
        first.follow(lambda: True)
    Sender(spool, "az", "flow").follow(lambda: True)

    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("select key, value from metrics").fetchall() == [("kept", 74.0)]


@pytest.mark.slow
def test_what_the_server_refuses_does_not_block_the_rest(history: dict[str, Any]) -> None:
    assert "left out: " in history["there"].stderr
    assert "left out a damaged line of" in history["there"].stderr
    assert rows(history, "select count(*) from metrics where key = 'train/loss'") == [(5,)]


@pytest.mark.slow
def test_lines_that_are_sent_twice_are_stored_once(history: dict[str, Any]) -> None:
    losses = rows(history, "select step, value from metrics where key = 'train/loss' order by step")

    assert history["again"].returncode == 0, history["again"].stderr
    assert losses == [(step, 9.0 / step) for step in range(1, 6)]
    assert len(rows(history, "select * from runs")) == 5


def test_the_sender_ends_with_the_run_that_was_killed_and_leaves_its_spool_to_the_next(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "spool"
    code = (
        "import sys, time; from pathlib import Path; from anadil.runtime.mlflow_spool import run_sender\n"
        f"with run_sender(Path({str(spool)!r}), 'sqlite:///{tmp_path}/x.db', 'az', 'flow'):\n"
        "    print('started', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"started\n"
        run.kill()
    deadline = time.monotonic() + 20

    while not (spool / CLOSED).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_stage_that_was_killed_is_killed_in_mlflow_and_so_is_its_run(tmp_path: Path) -> None:
    spool, uri = tmp_path / "spool", f"sqlite:///{tmp_path}/mlflow.db"
    spool.mkdir()
    Tracker(spool / "pretrain.jsonl").start()
    (spool / CLOSED).touch()

    assert send(spool, uri).returncode == 0

    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        found = database.execute("select name, status from runs order by name").fetchall()
    assert found == [("flow", "KILLED"), ("pretrain", "KILLED")]
