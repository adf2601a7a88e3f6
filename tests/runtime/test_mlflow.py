import io
import sqlite3
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from anadil.runtime import mlflow_sender, trackers
from anadil.runtime.mlflow_sender import Sender
from anadil.runtime.tracking_spool import CLOSED, DONE, Tracker
from tests.kit.harness import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own
PASSWORD = "hunter2-and-more"


def send_here(spool: Path, uri: str) -> tuple[int, str]:
    """Exit code and log of the sender in this process: MLflow takes seconds to import."""
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(told):
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        for name, value in mlflow_sender.LIMITS.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["sender", str(spool)])
        trackers.noted(spool, experiment="az", name=spool.name)
        return mlflow_sender.main(), told.getvalue()


def fill(spool: Path) -> None:
    """The lines of a clean stage that ended and of a pretrain stage that failed."""
    spool.mkdir(parents=True)
    clean, pretrain = Tracker(spool / "clean.jsonl"), Tracker(spool / "pretrain.jsonl", "pretrain")
    clean.start()
    clean.texts("params", {"clean.minhash_bands": 14, "clean.inputs": '["a.jsonl"]'})
    clean.texts("tags", {"anadil.artifact": "s3://bucket/corpus/1"})
    clean.metrics({"kept": 74, "docs_per_s": 165.7})
    clean.texts("run params", {"language": "az", "base.model": "tiny"})
    clean.end("FINISHED")
    pretrain.start()
    pretrain.texts("params", {"lr": 1})
    pretrain.texts("params", {"lr": 2})  # MLflow refuses to change one
    with (spool / "pretrain.jsonl").open("a") as file:
        file.write('{"kind": "metrics", "val{"kind": "start"}\n')  # what a kill in mid-write leaves
    for step in range(1, 6):
        pretrain.metrics(
            {"loss": 9.0 / step, "refused: {}": 1, "time_share/step": 0.9, "validation_bits_per_byte": 2.0},
            step,
        )
    for _ in range(2):  # as evaluate and report say what both know
        pretrain.texts("run params", {"language": "az"})
        pretrain.run_metrics({"bits_per_byte/adapted": 1.25})
        pretrain.metrics({"loss": 1.5})
        time.sleep(0.002)
    pretrain.end("FAILED")
    (spool / CLOSED).touch()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A spool that met a closed port, then a database."""
    base = tmp_path_factory.mktemp("history")
    spool, database = base / "spools" / "first", base / "mlflow.db"
    fill(spool)
    away = send_here(spool, f"http://me:{PASSWORD}@127.0.0.1:9")
    kept = not (spool / DONE).exists()
    # The next run, with a spool of its own, finds the first beside it.
    second = base / "spools" / "second"
    second.mkdir()
    Tracker(second / "clean.jsonl").start()
    (second / CLOSED).touch()
    there = send_here(second, f"sqlite:///{database}")
    return {"away": away, "kept": kept, "there": there, "database": database, "spool": spool}


def rows(history: dict[str, Any], query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(history["database"]) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_server_that_is_away_is_a_warning_without_the_password(history: dict[str, Any]) -> None:
    code, told = history["away"]

    assert code == 1
    assert "MLflow is away" in told
    assert PASSWORD not in told
    assert "Traceback" not in told
    assert history["kept"]


@pytest.mark.slow
def test_the_next_sender_sends_what_stayed_in_the_spool_beside_it(history: dict[str, Any]) -> None:
    assert history["there"][0] == 0, history["there"]
    assert (history["spool"] / DONE).exists()
    found = rows(history, "select name, status from runs order by start_time, name")
    assert sorted(found) == [
        ("clean", "FINISHED"),
        ("clean", "KILLED"),
        ("first", "FAILED"),
        ("pretrain", "FAILED"),
        ("second", "KILLED"),
    ]
    assert rows(history, "select distinct name from experiments where name = 'az'") == [("az",)]
    parents = rows(
        history,
        "select child.name, parent.name from runs child join tags t on t.run_uuid = child.run_uuid "
        "and t.key = 'mlflow.parentRunId' join runs parent on parent.run_uuid = t.value",
    )

    assert sorted(parents) == [("clean", "first"), ("clean", "second"), ("pretrain", "first")]


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
def test_what_the_server_refuses_does_not_block_the_rest(history: dict[str, Any]) -> None:
    told = history["there"][1]

    assert "left out: " in told
    assert "left out a damaged line of" in told
    assert rows(history, "select count(*) from metrics where key = 'train/loss'") == [(5,)]


class Handed:
    """What a sender remembers, without MLflow: it notes how far each file was handed over."""

    client = None

    def __init__(self, _: Path) -> None:
        self.state: dict[str, dict[str, int]] = {"offsets": {}}

    def save_lines(self, name: str, offset: int) -> None:
        self.state["offsets"][name] = offset


def test_a_line_that_is_still_written_waits_for_its_end_and_a_torn_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_sender, "Records", Handed)
    sent: list[int] = []

    def send_line(_sender: Sender, _stage: str, line: dict[str, int], _pending: object) -> None:
        sent.append(line["step"])

    monkeypatch.setattr(Sender, "_send", send_line)
    sender, path = Sender(tmp_path, "az", "flow"), tmp_path / "pretrain.jsonl"
    path.write_text('{"step": 1}\n{"st{"step": 0}\n{"step": 2}\n{"ste')

    sender._send_whole(path)
    with path.open("a") as file:
        file.write('p": 3}\n')
    sender._send_whole(path)

    assert sent == [1, 2, 3]


def test_the_sender_ends_with_the_run_that_was_killed_and_leaves_its_spool_to_the_next(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "spool"
    code = (
        "import sys, time; from pathlib import Path; from anadil.runtime.tracking_spool import run_sender\n"
        f"with run_sender(Path({str(spool)!r}), 'sqlite:///{tmp_path}/x.db', 'az', 'flow'):\n"
        "    print('started', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"started\n"
        run.kill()
    deadline = time.monotonic() + PATIENCE_S

    while not (spool / CLOSED).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
