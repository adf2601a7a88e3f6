"""Who may write to an archive: one run at a time.

In S3 a lock object, written only if it is still as it was seen last (conditional writes), is
renewed while the run lives; a run that is silent may be succeeded. In a directory, a file lock.
"""

import contextlib
import fcntl
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from anadil.errors import AnadilError, PreflightError

log = logging.getLogger(__name__)


class Taken(PreflightError):
    """Another run writes there."""


class Lock(Protocol):
    """What keeps a second run from writing to an archive."""

    def take(self) -> None:
        """Hold it from now on.

        Raises:
            Taken: Another run holds it.
        """
        ...

    def check(self) -> None:
        """Make sure that it is still held; raises as `take` does."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...


class FileLock:
    """A lock on a file, which the kernel gives back when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Lock the file, where the file system has locks."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise _taken(str(self._path.parent), {}) from None
        except OSError as error:
            log.warning("%s: no lock against a second run (%s)", self._path, error)

    def check(self) -> None:
        """Nothing: the kernel takes no lock away."""

    def release(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class ObjectLock:
    """A lock object in S3, renewed by a thread."""

    def __init__(self, uri: str, renew_s: float, silent_s: float) -> None:
        self._uri = uri
        self._renew_s = renew_s
        self._silent_s = silent_s
        self._owner = {"owner": uuid.uuid4().hex, "host": platform.node(), "process": os.getpid()}
        self._tag = ""
        self._lost = False
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._renew_until_ended, name="archive-lock", daemon=True)

    def take(self) -> None:
        """Write the object, if it is not there, or if its owner has said that it is done or is silent."""
        if not self._written(""):
            self._succeed()
        self._thread.start()

    def check(self) -> None:
        """Renew it."""
        with self._turn:
            if self._lost or not self._written(self._tag):
                self._lost = True
                raise _taken(self._uri, self._read()[0])

    def _succeed(self) -> None:
        """Take over from a run that has ended, well or badly."""
        content, tag = self._read()
        deadline = time.monotonic() + self._silent_s
        if not content.get("released"):
            log.info("%s: held; waiting up to %.0f s to see whether its run lives", self._uri, self._silent_s)
        while not content.get("released") and time.monotonic() < deadline:
            time.sleep(self._renew_s / 10)
            content, now = self._read()
            if now != tag and not content.get("released"):
                raise _taken(self._uri, content)
            tag = now
        if not self._written(tag):
            raise _taken(self._uri, self._read()[0])

    def release(self) -> None:
        """Say in the object that its owner is done."""
        self._ended.set()
        with self._turn, contextlib.suppress(AnadilError):
            if not self._lost:
                self._written(self._tag, released=True)

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._renew_s):
            try:
                self.check()
            except Taken as error:
                log.warning("%s", error)
                return
            except AnadilError as error:
                log.warning("%s: lock not renewed (%s); trying again", self._uri, error)

    def _written(self, tag: str, *, released: bool = False) -> bool:
        """Whether the object was as `tag` says, and is ours now."""
        from anadil.s3 import S3

        content = {**self._owner, "count": time.time_ns(), "released": released}
        new = S3().write_if(self._uri, json.dumps(content).encode(), tag)
        if new is None:
            # An answer may have been lost, and its repetition have found what we wrote ourselves.
            found, new = self._read()
            if found.get("owner") != self._owner["owner"]:
                return False
        self._tag = new
        return True

    def _read(self) -> tuple[dict[str, object], str]:
        from anadil.s3 import S3

        content, tag = S3().read_tagged(self._uri)
        try:
            return dict(json.loads(content)), tag
        except ValueError:
            return {}, tag


def _taken(uri: str, content: Mapping[str, object]) -> Taken:
    where = f" on {content['host']}" if content.get("host") else ""
    return Taken(
        f"{uri}: another run{where} writes there now; stop that run, or give this one another pretrain.copies.archive"
    )
