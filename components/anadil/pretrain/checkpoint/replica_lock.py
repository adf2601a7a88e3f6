"""Who may write to an archive: one run at a time.

In S3 a lock object, written only if it is still as it was seen last (conditional writes), is
renewed while the run lives; a run that is silent may be succeeded. In a directory, a file lock.
"""

import fcntl
import logging
from pathlib import Path
from typing import IO, Protocol

from anadil.artifacts.object_lock import Taken

log = logging.getLogger(__name__)

REMEDY = "stop that run, or give this one another pretrain.copies.archive"
"""What to do where another run writes."""


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
            raise Taken(f"{self._path.parent}: another run writes there now; {REMEDY}") from None
        except OSError as error:
            log.warning("%s: no lock against a second run (%s)", self._path, error)

    def check(self) -> None:
        """Nothing: the kernel takes no lock away."""

    def release(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
