"""Copies of checkpoints in another directory or in S3: written by one run, brought back, kept few."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from anadil.artifacts import s3, storage
from anadil.artifacts.uri import join
from anadil.core.errors import PreflightError, RecipeError
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from anadil.pretrain.checkpoint.replica import LOCK, CheckpointReplica
from tests.kit.checkpoint_samples import ORIGIN, Make, assert_newest, maker, save


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes `CheckpointFolder` with an archive, and closes them."""

    with contextmanager(maker)(tmp_path / "checkpoints") as made:

        def build(uri: str, folder: str = "checkpoints", origin: dict[str, str] = ORIGIN) -> CheckpointFolder:
            archive = CheckpointReplica(uri, 2, renew_s=0.3, silent_s=1.5)
            return made(origin, 2, tmp_path / folder, replica=archive)

        yield build


def saved_and_copied(checkpoints: CheckpointFolder, step: int) -> None:
    save(checkpoints, step)
    checkpoints.finish()
    checkpoints.close()


def names_in(uri: str) -> list[str]:
    return sorted(name.rpartition("/")[2] for name in storage.store(uri).directories(uri))


def test_the_archive_gets_the_newest_generations(make: Make, place: str, tmp_path: Path) -> None:
    for step in (2, 4, 6):
        checkpoints = make(place)
        saved_and_copied(checkpoints, step)

    assert names_in(place) == ["step-00000004", "step-00000006"]
    assert directory.steps(tmp_path / "checkpoints") == [6, 4]  # and still lie where they were written
    assert not list((tmp_path / "checkpoints").glob("*.upload"))


def test_an_archive_of_other_settings_is_told_apart(make: Make, place: str) -> None:
    first = make(place)
    saved_and_copied(first, 2)

    with pytest.raises(RecipeError, match=r"recipe seed 7 -> 8.* or give another pretrain\.copies\.archive"):
        make(place, folder="other", origin={**ORIGIN, "recipe seed": "8"}).newest()


def test_a_second_run_is_kept_out_of_an_archive(make: Make, place: str, tmp_path: Path) -> None:
    first = make(place)

    with pytest.raises(PreflightError, match=r"another run.* writes there now; stop that run, or give"):
        make(place, folder="second")

    saved_and_copied(first, 2)
    third = make(place, folder="third")  # once the first has ended there is room
    assert_newest(third, 2)


def test_of_runs_that_start_at_once_one_wins(bucket: str) -> None:
    archives = [CheckpointReplica(f"{bucket}/archive", 3, renew_s=0.3, silent_s=3) for _ in range(4)]
    together = threading.Barrier(len(archives))

    def claimed(archive: CheckpointReplica) -> bool:
        together.wait()
        try:
            archive.claim()
        except PreflightError as error:
            return error.exit_code != 4
        return True

    with ThreadPoolExecutor(len(archives)) as threads:
        won = list(threads.map(claimed, archives))
    for archive in archives:
        archive.close()

    assert sorted(won) == [False, False, False, True]


def test_a_run_that_died_is_succeeded(bucket: str, make: Make) -> None:
    uri = f"{bucket}/archive"
    lock = join(uri, LOCK)
    storage.store(uri).write(
        lock, json.dumps({"owner": "dead", "host": "node-1", "released": False}).encode()
    )

    started = time.monotonic()
    make(uri)

    assert 1.4 < time.monotonic() - started < 10
    assert json.loads(storage.store(uri).read(lock))["owner"] != "dead"


def test_a_run_whose_lock_was_taken_over_is_told_at_its_next_save(
    bucket: str, make: Make, tmp_path: Path
) -> None:
    uri = f"{bucket}/archive"
    first = make(uri)
    storage.store(uri).write(join(uri, LOCK), b'{"owner": "other", "host": "node-2"}')

    with pytest.raises(PreflightError, match="another run on node-2 writes there now"):
        save(first, 2)
    assert directory.steps(tmp_path / "checkpoints") == [2]  # what it wrote itself is safe
    assert names_in(uri) == []


def test_a_conditional_write_changes_only_what_was_seen(bucket: str) -> None:
    uri = f"{bucket}/lock.json"
    store = s3.S3()

    first = store.write_if(uri, b"one", "")
    assert first is not None
    assert store.write_if(uri, b"two", "") is None
    second = store.write_if(uri, b"two", first)
    assert second is not None
    assert store.write_if(uri, b"three", first) is None
    assert store.read_tagged(uri) == (b"two", second)
    assert store.write_if(f"{bucket}/gone.json", b"x", first) is None
