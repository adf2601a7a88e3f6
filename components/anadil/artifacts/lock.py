"""Locks between processes of one machine, in a directory that they agree on."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from anadil.core.errors import PreflightError, RetryableError

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a stage waits for another process that makes the same artifact."""

LOCK = "lock"
"""File in the directory."""
MODE = 0o666
"""The file's mode: other users may ask whether the lock is held."""
ATTEMPTS = 20
"""To make the directory, which another process removes as it ends."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as Lustre mounted without `flock`. Source: flock(2)."""


@contextlib.contextmanager
def locked(work: Path, patience_s: float | None = None) -> Iterator[None]:
    """Make sure that one process of this machine at a time makes the artifact.

    Args:
        work: The directory; it goes when it is empty.
        patience_s: How long to wait for another process; None: `PATIENCE_S`.

    Raises:
        RetryableError: Another one is at it for longer than that.
    """
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    waited = False
    while (held := _acquire(work)) is None:
        if time.monotonic() > deadline:
            raise RetryableError(
                f"{work}: another process makes this artifact; wait for it or stop it, and run again"
            )
        if not waited:
            log.info("waiting for another process that makes the same artifact")
        waited = True
        time.sleep(0.2)
    try:
        yield
    finally:
        # While it is held; who waits for it opens the next one.
        if _is_there(held, work):
            (work / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_UN)  # closing does not free it while a fork of this process lives
        os.close(held)
        with contextlib.suppress(OSError):
            work.rmdir()  # only if no checkpoint is in it


def clear(work: Path) -> None:
    """Remove all that lies in a directory that this process has locked, but for the lock."""
    for entry in list(work.iterdir()) if work.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)


def is_held(work: Path) -> bool:
    """Whether a process of this machine is at work in a directory."""
    try:
        lock = os.open(work / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two who ask are none at work
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _acquire(work: Path) -> int | None:
    """The lock's open file where it is ours now.

    Directory and file come and go as other processes end, also between any two calls here.

    Raises:
        PreflightError: The directory cannot be made.
    """
    _make(work)
    path = work / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, MODE)
    except FileNotFoundError:
        return None
    try:
        with contextlib.suppress(PermissionError):  # another user made it
            os.fchmod(lock, MODE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(lock, work):
            return lock
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno in NO_LOCKS:
            log.warning("%s: this file system has no locks (%s); let one run at a time use it", work, error)
            return lock
        os.close(lock)
        raise
    os.close(lock)  # of another process, or of one that has ended
    return None


def _is_there(lock: int, work: Path) -> bool:
    """An open file is still the directory's lock. Another process may have removed it, and a third made a new one."""
    try:
        return os.path.samestat(os.fstat(lock), (work / LOCK).stat())
    except FileNotFoundError:
        return False


def _make(work: Path) -> None:
    for attempt in range(ATTEMPTS):
        try:
            work.mkdir(parents=True, exist_ok=True)
        except (
            FileNotFoundError,
            NotADirectoryError,
            FileExistsError,
        ) as error:  # such as below /proc or a file
            if attempt + 1 == ATTEMPTS:
                raise PreflightError(
                    f"{work}: no directory can be made there ({error}); choose another place"
                ) from None
        else:
            return
