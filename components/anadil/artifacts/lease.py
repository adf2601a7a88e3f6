"""Leases: one writer at a time in a place, whatever keeps the lease.

A lease is acquired, renewed while its owner lives, and released. Each kind reads the entry that says who holds it, and
replaces it only if it is as it was seen last. Where nothing frees the lease of a dead owner, whoever waits takes over
after `SILENT_S` without a renewal, counted on its own clock: no two clocks are compared.
"""

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import platform
import random
import shutil
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.artifacts.s3 import S3
from anadil.artifacts.uri import ConditionsError
from anadil.core.errors import AnadilError, DataError, PreflightError, RetryableError

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

RENEW_S = 20.0
"""Between renewals. Assumption: three requests a minute cost nothing."""
SILENT_S = 100.0
"""After so long without a renewal an owner is taken for dead: five are missing."""
PATIENCE_S = 60.0
"""How long a stage waits for another process that makes the same artifact."""
LOCK = "lock"
"""File in a locked directory."""
MODE = 0o666
"""Mode of a lock file: other users may ask whether it is held."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as Lustre mounted without `flock`. Source: flock(2)."""
ATTEMPTS = 20
"""To make the directory, which another process removes as it ends."""


class Taken(PreflightError):
    """Another run holds the lease."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Current state of a lease."""

    owner: str = ""
    """Empty: nobody holds it."""
    tag: str = ""
    """Changes with each renewal; empty: there is no entry."""
    host: str = ""


class Lease(ABC):
    """The right to be the only one who writes to a place."""

    expires = True
    """The entry of a dead owner stays: it is renewed, and a silent one is taken over."""
    poll_s = 0.5
    """Longest pause between two looks while waiting."""

    def __init__(
        self, place: str, remedy: str = "", renew_s: float | None = None, silent_s: float | None = None
    ) -> None:
        """Acquire nothing yet.

        Args:
            remedy: What to do where another run holds it, for messages.
            renew_s: Seconds between renewals; None: `RENEW_S`.
            silent_s: Seconds without a renewal after which another run may take over; None: `SILENT_S`.
        """
        self._place = place
        self._remedy = remedy
        self._renew_s = RENEW_S if renew_s is None else renew_s
        self._silent_s = SILENT_S if silent_s is None else silent_s
        self._owner = f"{platform.node()} {os.getpid()} {uuid.uuid4().hex}"
        self._tag = ""
        self._is_lost = False
        self._ended = threading.Event()
        self._turn = threading.RLock()

    @abstractmethod
    def _read(self) -> Entry:
        """Return the current entry."""

    @abstractmethod
    def _replace(self, tag: str) -> str | None:
        """Make the entry of that tag this owner's; return its new tag, None if it is another entry now."""

    @abstractmethod
    def _remove(self) -> None:
        """Let others acquire the lease."""

    def acquire(self, patience_s: float = 0.0) -> None:
        """Wait until the lease is free, or its owner has been silent for too long, or `patience_s` have gone."""
        deadline, has_waited = time.monotonic() + patience_s, False
        tag, since, is_alive = "", math.nan, False
        while True:
            entry, now = self._read(), time.monotonic()
            if entry.tag != tag:
                is_alive, tag, since = bool(tag), entry.tag, now
            is_silent = self.expires and now - since > self._silent_s
            if entry.owner and is_silent:
                log.warning("%s: %s has ended without giving it back; taking over", self._place, entry.owner)
            if not entry.owner or is_silent:
                if self._write(entry.tag):
                    break
                is_alive = True  # another was faster
            if is_alive and time.monotonic() >= deadline:
                raise self._taken(self._read())  # who was faster is in no entry from before
            if not has_waited:
                takes_over = f"; this one takes over after {self._silent_s:.0f} s without a sign of life"
                log.info("%s: held; waiting for its run%s", self._place, takes_over if self.expires else "")
            has_waited = True
            # At random, so that those who wait do not ask at the same time.
            time.sleep(min(self.poll_s, self._renew_s / 10) * random.uniform(0.5, 1))  # noqa: S311  no secret
        if self.expires:
            threading.Thread(target=self._renew_until_ended, name="lease", daemon=True).start()

    def check(self) -> None:
        """Renew the lease before a write to its place."""
        with self._turn:
            if self._is_lost or not self._write(self._tag):
                self._is_lost = True
                raise self._taken(self._read())

    def release(self) -> None:
        """Let others acquire it; one that was lost stays its new owner's."""
        with self._turn:
            if self._ended.is_set() or not self._tag:
                return
            self._ended.set()
            try:
                self.check()
                self._remove()
            except (AnadilError, OSError) as error:  # a mount that has gone must not fail what is finished
                log.warning("%s: not given back (%s); the next run takes over", self._place, error)

    def _write(self, tag: str) -> bool:
        new = self._replace(tag)
        if new is None:
            # An answer may have been lost, and its repetition have met what we wrote ourselves.
            entry = self._read()
            if entry.owner != self._owner:
                return False
            new = entry.tag
        self._tag = new
        return True

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._renew_s):
            with self._turn:
                if self._ended.is_set():
                    return
                try:
                    self.check()
                except Taken as error:
                    log.warning("%s", error)
                    return
                except AnadilError as error:
                    log.warning("%s: lock not renewed (%s); trying again", self._place, error)

    def _taken(self, entry: Entry) -> Taken:
        where = f" on {entry.host}" if entry.host else ""
        text = f"another run{where} writes there now"
        if entry.owner == self._owner:
            text = "this run took so long that another may have begun"
        return Taken(f"{self._place}: {text}; {self._remedy}")


class ObjectLease(Lease):
    """A JSON object in S3, replaced by conditional writes."""

    # Each look is a request that costs money, and an upload is waited for up to an hour.
    poll_s = 2.0
    stays = False
    """Leave the object, for a place that is written again: a removal that arrives late would hit the next owner's."""

    def check_conditions(self) -> None:
        """Make sure that the storage heeds conditions; some answer 200 and write all the same."""
        if self._replace("") is not None:  # the object is there, so this must fail
            text = "the storage has no conditional writes (If-None-Match, If-Match)"
            raise ConditionsError(f"{self._place}: {text}")

    def _read(self) -> Entry:
        try:
            content, tag = S3().read_tagged(self._place)
        except DataError:  # removed meanwhile
            return Entry()
        try:
            fields = json.loads(content)
        except ValueError:
            fields = {}
        owner = "" if fields.get("released") else fields.get("owner", "somebody")
        return Entry(owner, tag, fields.get("host", ""))

    def _replace(self, tag: str, *, released: bool = False) -> str | None:
        # The count changes the bytes, and with them the tag.
        fields = {
            "owner": self._owner,
            "host": platform.node(),
            "count": time.time_ns(),
            "released": released,
        }
        return S3().write_if(self._place, json.dumps(fields).encode(), tag)

    def _remove(self) -> None:
        if self.stays:
            self._replace(self._tag, released=True)
        else:
            S3().remove(self._place)


class StandingObjectLease(ObjectLease):
    """An object that stays, marked as free."""

    stays = True


class FileLease(Lease):
    """A locked file, which the kernel frees when its process ends."""

    expires = False
    _lock: "BaseFileLock | None" = None
    _file: os.stat_result | None = None

    def _read(self) -> Entry:
        return Entry()  # only an attempt shows whether another process holds it

    def _replace(self, tag: str) -> str | None:  # noqa: ARG002  there is one
        if self._lock is None:
            self._acquire(Path(self._place))
        return None if self._lock is None else LOCK

    def _acquire(self, path: Path) -> None:
        from filelock import FileLock, Timeout

        # Directory and file come and go as other processes end, also between any two calls here.
        _make(path.parent)
        # No mode: some mounts have none.
        lock = FileLock(path, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
            self._lock, self._file = lock, path.stat()
            with contextlib.suppress(OSError):  # another user made it, or the mount has no modes
                path.chmod(MODE)
        except (Timeout, FileNotFoundError, FileExistsError):  # filelock makes the directory, too
            lock.release()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                text = f"cannot be locked ({error}); choose another place, or mount it with locks"
                raise PreflightError(f"{path}: {text}") from None
            log.warning("%s: this file system has no locks (%s); let one run at a time use it", path, error)
            self._lock = lock

    def _remove(self) -> None:
        """Remove the file too, and its directory if nothing else is in it."""
        assert self._lock is not None
        path = Path(self._place)
        try:
            # While it is held; who waits for it opens the next one. Others may have removed it and made a new one.
            if self._file is not None and path.exists() and os.path.samestat(self._file, path.stat()):
                path.unlink(missing_ok=True)
        finally:
            self._lock.release()
        with contextlib.suppress(OSError):
            path.parent.rmdir()


@contextlib.contextmanager
def locked(work: Path, patience_s: float | None = None) -> Iterator[None]:
    """Make sure that one process of this machine at a time makes the artifact; `work` goes when it is empty."""
    lease = FileLease(str(work / LOCK))
    try:
        lease.acquire(PATIENCE_S if patience_s is None else patience_s)
    except Taken:
        text = "another process makes this artifact; wait for it or stop it, and run again"
        raise RetryableError(f"{work}: {text}") from None
    try:
        yield
    finally:
        lease.release()


def clear(work: Path, keep: Collection[Path] = ()) -> None:
    """Remove all that lies in a directory that this process has locked, but for the lock and the directories `keep`."""
    for entry in list(work.iterdir()) if work.is_dir() else ():
        if entry in keep:
            continue
        if any(entry in each.parents for each in keep):
            clear(entry, keep)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)


def is_held(work: Path) -> bool:
    """Return whether a process of this machine is at work in a directory."""
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


def _make(folder: Path) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return folder.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
            if attempt == ATTEMPTS:  # such as below /proc or a file
                text = f"no directory can be made there ({error}); choose another place"
                raise PreflightError(f"{folder}: {text}") from None
    return None
