"""A lock between processes of one machine, in a directory that they agree on."""

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from anadil.core.errors import PreflightError

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a stage waits for another process that makes the same artifact."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems without locks, such as Lustre mounted without `flock`. Source: flock(2)."""


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Make sure that one process of this machine at a time makes the artifact."""
    path = work / "lock"
    deadline = time.monotonic() + PATIENCE_S
    waited = False
    while True:
        work.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            if _take(file, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        work.rmdir()  # only if no checkpoint is in it
                return
        if time.monotonic() > deadline:
            raise PreflightError(f"{work}: another process makes this artifact; wait for it or stop it")
        if not waited:
            log.info("waiting for another process that makes the same artifact")
        waited = True
        time.sleep(0.2)


def is_held(work: Path) -> bool:
    """Whether a process of this machine is at work in a directory."""
    try:
        with (work / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released with the file
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _take(file: IO[str], path: Path) -> bool:
    """Whether the lock is ours, and still the one that others will find."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("%s: this file system has no locks (%s); let one run at a time use it", path, error)
        return True
