"""Upload of a finished directory to S3, so that of several runs one alone writes it, and completely.

A run first claims the address with a lease, an object beside it, `<uri>.claim`. Each file goes up on the condition that
its object is as it was seen before the claim was confirmed, so that a run that has lost its claim cannot change its
successor's files. The manifest, last, goes up if there is none.
"""

import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from anadil.artifacts.lease import ObjectLease, Taken
from anadil.artifacts.s3 import S3
from anadil.artifacts.uri import MANIFEST, AlreadyThereError, ConditionsError, join
from anadil.core.errors import RetryableError

log = logging.getLogger(__name__)

CLAIM = ".claim"
PATIENCE_S = 3_600.0
"""How long a run waits for another one's upload; 140 GB at 100 MB/s take 25 minutes."""
NO_COPIES: Mapping[str, str] = MappingProxyType({})
ATTEMPTS = 5
"""Times that a file is sent that another run's last upload crosses."""


class S3Store(S3):
    """Objects of S3, and directories that are put there by one run alone."""

    def put_directory(self, source: Path, uri: str, copies: Mapping[str, str] = NO_COPIES) -> None:
        """Upload every file, the manifest last, so that of several runs one alone writes there; see `publish`."""
        publish(self, source, uri, copies)
        shutil.rmtree(source)


def publish(objects: S3, source: Path, uri: str, copies: Mapping[str, str] = NO_COPIES) -> None:
    """Upload every file, the manifest last; replace what a killed run has left there.

    `copies` are files, by name, that are copied within the storage from their URI.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        _refuse_finished(objects, uri)
        lease = _claim(uri, deadline)
        try:
            _refuse_finished(objects, uri)
            return _upload(objects, source, uri, copies, lease)
        except Taken as error:  # this run was silent for too long
            log.warning("%s", error)
        finally:
            if lease is not None:
                lease.release()


def _claim(uri: str, deadline: float) -> ObjectLease | None:
    """Return a lease on the address; None where the storage has no conditional writes."""
    is_bucket = "/" not in uri.removeprefix("s3://")
    lease = ObjectLease(join(uri, CLAIM) if is_bucket else f"{uri}{CLAIM}", "it makes the same artifact")
    try:
        lease.acquire(deadline - time.monotonic())
        lease.check_conditions()
    except Taken as error:
        raise RetryableError(f"{error}; see whether it still does and run again") from None
    except ConditionsError as error:
        lease.release()
        log.warning("%s; two runs that make %s at the same time would spoil it", error, uri)
        return None
    return lease


def _refuse_finished(objects: S3, uri: str) -> None:
    if objects.exists(join(uri, MANIFEST)):
        raise AlreadyThereError(f"{uri}: another run has just finished it")


def _upload(
    objects: S3, source: Path, uri: str, copies: Mapping[str, str], lease: ObjectLease | None
) -> None:
    files: dict[str, Path | str] = {
        file.relative_to(source).as_posix(): file for file in source.rglob("*") if file.is_file()
    }
    files.pop(MANIFEST, None)
    files |= copies
    seen = objects.tags(uri)
    if lease is not None:
        lease.check()
    for stray in sorted(seen.keys() - files.keys() - {MANIFEST, CLAIM}):
        objects.remove(join(uri, stray))
    for name, file in sorted(files.items()):
        _send(objects, file, uri, name, seen, lease)
    manifest = source / MANIFEST
    if not manifest.is_file():
        return
    if lease is not None:
        lease.check()
    target = join(uri, MANIFEST)
    # An answer may have been lost, and its repetition have found what we sent ourselves.
    if not objects.upload(manifest, target, "" if lease else None) and (
        objects.read(target) != manifest.read_bytes()
    ):
        raise AlreadyThereError(f"{uri}: another run has just finished it")


def _send(
    objects: S3, file: Path | str, uri: str, name: str, seen: dict[str, str], lease: ObjectLease | None
) -> None:
    """Upload a file, or copy an object by its URI, over what was seen in its place before the claim was confirmed."""
    target = join(uri, name)
    for _ in range(ATTEMPTS):
        if lease is None:
            _transfer(objects, file, target, None)
            return
        lease.check()
        if _transfer(objects, file, target, seen.get(name, "")):
            return
        seen.update(objects.tags(uri))
    raise RetryableError(f"{target}: other runs keep writing there; stop them and run again")


def _transfer(objects: S3, file: Path | str, target: str, tag: str | None) -> bool:
    return objects.copy(file, target, tag) if isinstance(file, str) else objects.upload(file, target, tag)
