"""The database file of MLflow, moved with the work directory that it lies in."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from anadil.runtime.mlflow_records import artifact_place, follow_move

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
