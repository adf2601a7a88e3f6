"""A finished directory -> S3, so that of several runs that make it one alone writes it, and whole.

A run first claims the address with a lock object beside it, `<uri>.claim`. Each file goes up on the
condition that its object is as it was seen before the claim was confirmed, so that a run that has lost
its claim cannot change what its successor has written. The manifest, last, goes up if there is none.
"""

import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from anadil.artifacts import object_lock
from anadil.artifacts.object_lock import ObjectLock, Taken
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
        """Upload every file, the manifest last, so that of several runs one alone writes there.

        Args:
            source: Local directory.
            uri: Where to.
            copies: Name -> URI of files that are copied within the storage.

        Raises:
            AlreadyThereError: Another run has finished it first.
            RetryableError: Another run is at it for too long.
        """
        publish(self, source, uri, copies)
        shutil.rmtree(source)


def publish(objects: S3, source: Path, uri: str, copies: Mapping[str, str] = NO_COPIES) -> None:
    """Upload every file, the manifest last; what a killed run has left there is replaced.

    The arguments are those of `S3Store.put_directory`.

    Raises:
        AlreadyThereError: Another run has finished first; nothing of it was changed.
        RetryableError: Another run is at it for too long.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lock = _claim(objects, uri, deadline)
        try:
            return _upload(objects, source, uri, copies, lock)
        except Taken as error:  # this run was silent for too long
            log.warning("%s", error)
        finally:
            if lock is not None:
                lock.remove()


def _claim(objects: S3, uri: str, deadline: float) -> ObjectLock | None:
    """A claim on the address; None where the storage has no conditional writes."""
    waited = False
    while True:
        _refuse_finished(objects, uri)
        lock = ObjectLock(
            _claim_of(uri), "it makes the same artifact", object_lock.RENEW_S, object_lock.SILENT_S
        )
        try:
            lock.take()
            lock.check_conditions()
        except Taken as error:
            if time.monotonic() > deadline:
                raise RetryableError(f"{error}; see whether it still does and run again") from None
            if not waited:
                log.info("%s; waiting for it", error)
            waited = True
            continue
        except ConditionsError as error:
            lock.remove()
            log.warning("%s; two runs that make %s at the same time would spoil it", error, uri)
            return None
        try:
            _refuse_finished(objects, uri)
        except BaseException:
            lock.remove()
            raise
        return lock


def _claim_of(uri: str) -> str:
    """Beside the directory; below it where that is a whole bucket."""
    is_bucket = "/" not in uri.removeprefix("s3://")
    return join(uri, CLAIM) if is_bucket else f"{uri}{CLAIM}"


def _refuse_finished(objects: S3, uri: str) -> None:
    if objects.exists(join(uri, MANIFEST)):
        raise AlreadyThereError(f"{uri}: another run has just finished it")


def _upload(objects: S3, source: Path, uri: str, copies: Mapping[str, str], lock: ObjectLock | None) -> None:
    files: dict[str, Path | str] = {
        file.relative_to(source).as_posix(): file for file in source.rglob("*") if file.is_file()
    }
    files.pop(MANIFEST, None)
    files |= copies
    seen = objects.tags(uri)
    if lock is not None:
        lock.check()
    for stray in sorted(seen.keys() - files.keys() - {MANIFEST, CLAIM}):
        objects.remove(join(uri, stray))
    for name, file in sorted(files.items()):
        _send(objects, file, uri, name, seen, lock)
    manifest = source / MANIFEST
    if not manifest.is_file():
        return
    if lock is not None:
        lock.check()
    target = join(uri, MANIFEST)
    # An answer may have been lost, and its repetition have found what we sent ourselves.
    if not objects.upload(manifest, target, "" if lock else None) and (
        objects.read(target) != manifest.read_bytes()
    ):
        raise AlreadyThereError(f"{uri}: another run has just finished it")


def _send(
    objects: S3,
    file: Path | str,
    uri: str,
    name: str,
    seen: dict[str, str],
    lock: ObjectLock | None,
) -> None:
    """Upload a file, or copy an object by its URI, over what was seen in its place before the claim was confirmed."""
    target = join(uri, name)
    for _ in range(ATTEMPTS):
        if lock is None:
            _transfer(objects, file, target, None)
            return
        lock.check()
        if _transfer(objects, file, target, seen.get(name, "")):
            return
        seen.update(objects.tags(uri))
    raise RetryableError(f"{target}: other runs keep writing there; stop them and run again")


def _transfer(objects: S3, file: Path | str, target: str, tag: str | None) -> bool:
    return objects.copy(file, target, tag) if isinstance(file, str) else objects.upload(file, target, tag)
