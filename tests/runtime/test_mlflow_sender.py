"""The sender itself, without MLflow, which takes seconds to import."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout

from anadil.runtime import mlflow_sender
from anadil.runtime.mlflow_records import Records, alone_at
from anadil.runtime.mlflow_sender import send_all


class RefusedError(Exception):
    """What MLflow's client raises where nobody signed in."""

    def get_http_status_code(self) -> int:
        """The server's answer."""
        return 401


@pytest.mark.parametrize(
    ("error", "message"),
    [
        # SQLAlchemy raises this if another process makes the same tables; it is not MLflow's exception.
        (RuntimeError("table experiments already exists"), "MLflow is away: RuntimeError: table experiments"),
        (OSError("artifacts: reset by peer"), "MLflow is away: OSError: artifacts: reset by peer"),
        (RefusedError("no"), "MLflow refuses: no; set MLFLOW_TRACKING_USERNAME"),
    ],
    ids=["driver", "artifacts", "sign in"],
)
def test_whatever_is_raised_the_lines_are_sent_again(
    error: Exception,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mlflow_sender, "answers", lambda *_: True)
    monkeypatch.setattr("time.sleep", lambda _: None)
    errors = [error]

    def send(_spool: Path) -> None:
        if errors:
            raise errors.pop()

    assert send_all(lambda: mlflow_sender._trouble([tmp_path], send), lambda: False) == 0
    assert message in caplog.text


def test_one_process_at_a_time_opens_a_database_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, opened = f"sqlite:///{tmp_path}/mlflow.db", []

    class Client:
        def __init__(self) -> None:
            lock = alone_at(uri)
            assert isinstance(lock, FileLock)
            with pytest.raises(Timeout):
                lock.acquire(timeout=0)
            with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
                database.execute("create table experiments (artifact_location text)")
            opened.append(self)

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    Records(tmp_path)

    assert len(opened) == 1
    with alone_at(uri), alone_at("http://mlflow.example"):
        pass
