"""MLflow's database file: the place of its artifacts, also after the file was moved."""

import hashlib
import os
import sqlite3
import tempfile
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from anadil.artifacts.uri import join
from anadil.recipe.tracking_address import DATABASES

SCHEME = "sqlite:///"
FOLDER = "mlflow-artifacts"
WAIT_S = 30
"""For others that write the database."""
PLACES = {"experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location"}
"""Table -> column with the place of its artifacts. Source: mlflow.store.tracking.dbmodels.models, MLflow 3.11 to 3.17."""


def artifact_place(uri: str, root: str) -> str | None:
    """Return where artifacts of a database without a server lie: beside its file, or below `root`."""
    if uri.partition(":")[0].partition("+")[0].lower() not in DATABASES:
        return None  # the server decides
    if uri.startswith(SCHEME):
        root = str(Path(uri.removeprefix(SCHEME)).absolute().parent)
    place = join(root, FOLDER)
    return place if "://" in place else Path(place).absolute().as_uri()


def follow_move(uri: str) -> None:
    """Correct the places in a database that was moved or copied together with its artifacts."""
    # MLflow keeps absolute places: files of new runs would go to where the work directory once was, and those of earlier
    # runs would not be found.
    here = artifact_place(uri, "/")
    if not uri.startswith(SCHEME) or here is None:
        return
    with closing(sqlite3.connect(uri.removeprefix(SCHEME), timeout=WAIT_S)) as database, database:
        places = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        for place in [place for (place,) in places if _was_moved(place, here)]:
            for table, column in PLACES.items():
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608  names of our own
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (here, len(place) + 1, place, len(place) + 1, f"{place}/"),
                )


def _was_moved(place: str, here: str) -> bool:
    if place == here or not place.startswith("file:") or not place.endswith(f"/{FOLDER}"):
        return False
    old, new = (Path(url2pathname(urlsplit(each).path)) for each in (place, here))
    if not os.path.isdir(old):  # noqa: PTH112  also where it may not be looked at
        return True
    # Where only the database was moved there is no new one; a directory with two names was not moved.
    return new.is_dir() and not new.samefile(old)


def alone_at(uri: str) -> AbstractContextManager[object]:
    """Return a lock for opening a database file: of two processes that make its tables at once both fail."""
    database = uri.removeprefix(SCHEME)
    if database == uri:
        return nullcontext()
    name = hashlib.sha256(str(Path(database).absolute()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"anadil-{name}.lock", mode=0o666)
