"""The sender itself, without MLflow, which takes seconds to import."""

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout

from anadil.runtime import mlflow_sender
from anadil.runtime.mlflow_records import Records, alone_at, artifact_place, follow_move
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


TABLES = """
create table experiments (artifact_location text);
create table runs (artifact_uri text);
create table logged_models (artifact_location text);
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work directory with a space, an experiment, a run and a model in its database, and an experiment elsewhere."""
    work = tmp_path / "my work"
    (work / "mlflow-artifacts").mkdir(parents=True)
    place = artifact_place(address(work), "/")
    with sqlite3.connect(work / "mlflow.db") as database:
        database.executescript(TABLES)
        database.execute("insert into experiments values (?), ('s3://bucket/mlflow-artifacts')", (place,))
        database.execute("insert into runs values (?)", (f"{place}/1/artifacts",))
        database.execute("insert into logged_models values (?)", (f"{place}/models/m-1/artifacts",))
    database.close()
    return work


def address(work: Path) -> str:
    return f"sqlite:///{work}/mlflow.db"


def places(work: Path) -> list[str]:
    query = "select * from experiments union select * from runs union select * from logged_models"
    database = sqlite3.connect(work / "mlflow.db")
    found = [place for (place,) in database.execute(query)]
    database.close()
    return sorted(found)


def expected(work: Path) -> list[str]:
    here = f"{work.parent.as_uri()}/{work.name.replace(' ', '%20')}/mlflow-artifacts"
    return [here, f"{here}/1/artifacts", f"{here}/models/m-1/artifacts", "s3://bucket/mlflow-artifacts"]


@pytest.mark.parametrize("transfer", [shutil.move, shutil.copytree])
def test_files_of_runs_lie_beside_a_database_that_was_moved_or_copied_with_them(
    transfer: object, work: Path
) -> None:
    there = work.parent / "elsewhere"
    assert callable(transfer)
    transfer(work, there)

    follow_move(address(there))

    assert places(there) == expected(there)


def test_files_stay_where_they_are_if_the_database_alone_was_moved(work: Path) -> None:
    there = work.parent / "elsewhere"
    there.mkdir()
    shutil.move(work / "mlflow.db", there)

    follow_move(address(there))

    assert places(there) == expected(work)


def test_a_work_directory_keeps_its_name_when_it_is_reached_by_another(work: Path) -> None:
    link = work.parent / "link"
    link.symlink_to(work)

    follow_move(address(link))

    assert places(work) == expected(work)
