"""An archive whose storage fails, whose run is killed, stopped, or goes back."""

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from botocore.exceptions import ClientError, EndpointConnectionError

from anadil.artifacts import s3, storage
from anadil.artifacts.uri import join
from anadil.core.errors import RetryableError
from anadil.pretrain.checkpoint import replica as module
from anadil.pretrain.checkpoint.replica import LOCK, CheckpointReplica
from tests.kit.checkpoint_samples import Make, assert_newest, save, state_of

# s3transfer opens the file for each part in advance, and leaves it open where the part is not sent;
# a later test of this file may be the one in which it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DENIED = ClientError(
    {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "PutObject"
)
DOWN = EndpointConnectionError(endpoint_url="http://s3")


class Slow(CheckpointReplica):
    """Each piece takes a while."""

    def _count(self, num: int) -> None:
        time.sleep(0.1)
        super()._count(num)


def archive_at(uri: str, kind: type[CheckpointReplica] = CheckpointReplica) -> CheckpointReplica:
    return kind(uri, 3, renew_s=0.1, silent_s=0.5)


def save_all(make: Make, uri: str, *steps: int) -> None:
    """A run that saves at these steps and ends when they are copied."""
    checkpoints = make(replica=archive_at(uri))
    for step in steps:
        save(checkpoints, step)
        checkpoints.finish()
    checkpoints.close()


def steps_in(uri: str) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in sorted(storage.store(uri).directories(uri))]


@pytest.mark.parametrize("error", [DENIED, DOWN])
def test_storage_that_fails_at_a_save_is_a_warning_and_the_next_is_copied(
    make: Make,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    checkpoints = make(replica=archive_at(f"{bucket}/archive"))

    def fail(**_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(s3.s3_client(), "put_object", fail)
        save(checkpoints, 2)
        time.sleep(0.3)  # in which the lock should have been renewed
    save(checkpoints, 4)
    checkpoints.finish()
    renewed = storage.store(bucket).fingerprint(f"{bucket}/archive/{LOCK}")
    time.sleep(0.3)

    assert "the lock cannot be read; training continues" in caplog.text
    assert "step-00000002 is not copied there" in caplog.text
    assert steps_in(f"{bucket}/archive") == [4]
    assert storage.store(bucket).fingerprint(f"{bucket}/archive/{LOCK}") != renewed


@pytest.mark.parametrize("lost", [True, False])
def test_a_copy_that_lacks_a_file_or_has_a_damaged_one_is_left_out(
    make: Make, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    save_all(make, place, 2, 4)
    file = join(place, "step-00000004", "__0_0.distcp")
    content = bytearray(storage.store(place).read(file))
    content[500] ^= 1
    if not lost:
        storage.store(place).write(file, bytes(content))
    elif place.startswith("s3://"):
        bucket, _, key = file.removeprefix("s3://").partition("/")
        s3.s3_client().delete_object(Bucket=bucket, Key=key)
    else:
        Path(file).unlink()
    shutil.rmtree(tmp_path / "checkpoints")

    assert_newest(make(replica=archive_at(place)), 2)

    assert "damaged replica in the archive skipped" in caplog.text
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_run_that_stops_breaks_copies_off_and_the_next_start_makes_them(
    make: Make, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(storage, "PIECE_BYTES", 100_000)
    checkpoints = make(replica=archive_at(place, Slow))
    for step in (2, 4):  # one copied, one waiting
        checkpoints.save(state_of(step), {"weight": torch.full((5_000_000,), float(step))})
        checkpoints.wait()
    time.sleep(0.5)

    started = time.monotonic()
    checkpoints.close()
    seconds = time.monotonic() - started
    left = steps_in(place)
    again = make(replica=archive_at(place))
    found = again.newest()
    again.discard_later_checkpoints(4)
    again.finish()

    assert seconds < 9  # the copies take 40
    assert left == []
    assert "broken off; the next start does it" in caplog.text
    assert found is not None
    assert steps_in(place) == [4]
    if place.startswith("s3://"):
        bucket = place.removeprefix("s3://").partition("/")[0]
        assert "Uploads" not in s3.s3_client().list_multipart_uploads(Bucket=bucket)


def test_what_a_killed_run_left_half_copied_is_removed_and_copied_again(make: Make, place: str) -> None:
    save_all(make, place, 2)
    save(make(), 4)
    store = storage.store(place)
    store.write(join(place, "step-00000004", "__0_0.distcp"), b"half")
    if place.startswith("s3://"):
        bucket, _, key = place.removeprefix("s3://").partition("/")
        s3.s3_client().create_multipart_upload(Bucket=bucket, Key=f"{key}/step-00000004/__1_0.distcp")
    else:
        shutil.copytree(f"{place}/step-00000002", f"{place}/step-00000003.partial")

    checkpoints = make(replica=archive_at(place))
    files = store.files(place)
    assert_newest(checkpoints, 4)
    checkpoints.discard_later_checkpoints(4)
    checkpoints.finish()

    assert [name for name in files if "step-00000002/" not in name] == [join(place, LOCK)]
    assert steps_in(place) == [2, 4]
    if place.startswith("s3://"):
        assert "Uploads" not in s3.s3_client().list_multipart_uploads(Bucket=bucket)


def test_a_download_gives_signs_of_life_and_goes_on_where_it_was_broken_off(
    make: Make, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{bucket}/archive"
    save_all(make, uri, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    client, fetched, beats = s3.s3_client(), [], []
    download = client.download_file

    def fetch(bucket: str, key: str, *more: Any, **named: Any) -> None:
        fetched.append(key.rpartition("/")[2])
        if fetched[-1] == "state.json" and len(fetched) < 5:
            time.sleep(0.5)
            raise DOWN
        download(bucket, key, *more, **named)

    monkeypatch.setattr(client, "download_file", fetch)
    broken_off = make(replica=archive_at(uri))
    with pytest.raises(RetryableError):
        broken_off.newest()
    broken_off.close()
    first = sorted(fetched)
    fetched += ["second start"]
    assert_newest(make(replica=archive_at(uri, Slow), heartbeat=lambda: beats.append(1)), 2)

    assert first == [".metadata", "__0_0.distcp", "manifest.json", "state.json"]
    assert fetched[5:] == ["manifest.json", "state.json"]
    assert len(beats) >= 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
