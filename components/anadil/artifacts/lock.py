"""Locks between processes of one machine, in a directory that they agree on."""

import contextlib
import errno
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from anadil.core.errors import PreflightError, RetryableError

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a stage waits for another process that makes the same artifact."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems without locks, such as Lustre mounted without `flock`. Source: flock(2)."""


@contextlib.contextmanager
def locked(work: Path, patience_s: float | None = None) -> Iterator[None]:
    """Make sure that one process of this machine at a time makes the artifact.

    Args:
        work: The directory; it goes when it is empty.
        patience_s: How long to wait for another process; None: `PATIENCE_S`.

    Raises:
        RetryableError: Another one is at it for longer than that.
    """
    lock = _lock_in(work)
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    waited = False
    while not _acquire(lock, work):
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
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held; who waits for it opens the next one
        lock.release()
        with contextlib.suppress(OSError):
            work.rmdir()  # only if no checkpoint is in it


def is_held(work: Path) -> bool:
    """Whether a process of this machine is at work in a directory."""
    lock = _lock_in(work)
    if not Path(lock.lock_file).exists():
        return False
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def _lock_in(work: Path) -> FileLock:
    # Other users, too, may ask whether it is held. A soft lock would outlive a killed process.
    return FileLock(work / "lock", mode=0o666, fallback_to_soft=False)


def _acquire(lock: FileLock, work: Path) -> bool:
    """Whether the lock is ours now.

    Raises:
        PreflightError: The directory cannot be made.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:  # such as below /proc or a file
        raise PreflightError(
            f"{work}: no directory can be made there ({error}); choose another place"
        ) from None
    try:
        lock.acquire(blocking=False)
    except (Timeout, FileNotFoundError):  # the directory may go between two calls
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("%s: this file system has no locks (%s); let one run at a time use it", work, error)
    return True
