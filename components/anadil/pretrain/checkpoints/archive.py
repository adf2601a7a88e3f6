"""Copies of finished generations far away: an `s3://` prefix or another directory.

One run at a time writes there. A lock object, written only if it is still as it was seen last
(S3's conditional writes), is renewed while the run lives; a run that is silent may be succeeded.
"""

import contextlib
import fcntl
import json
import logging
import os
import platform
import shutil
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Protocol

from anadil import artifact, storage
from anadil.errors import AnadilError, IntegrityError, PreflightError, RecipeError
from anadil.pretrain.checkpoints import generation
from anadil.storage import MANIFEST

log = logging.getLogger(__name__)

LOCK = "writer.json"
RENEW_S = 20.0
"""Between renewals of the lock. Assumption: three requests a minute cost nothing."""
SILENT_S = 100.0
"""After so long without a renewal the run that holds the lock is taken for dead: five are missing."""
DOWNLOADS = 8
"""Objects fetched at a time."""


class Lock(Protocol):
    """What keeps a second run from writing to an archive."""

    def take(self) -> None:
        """Hold it from now on.

        Raises:
            PreflightError: Another run holds it.
        """
        ...

    def check(self) -> None:
        """Make sure that it is still held; raises as `take` does."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...


class Archive:
    """Copies each generation offered to it, in the background; the manifest last."""

    def __init__(self, uri: str, keep: int, *, renew_s: float = RENEW_S, silent_s: float = SILENT_S) -> None:
        """Every process may make one; the first alone uses it.

        Args:
            uri: `pretrain.copies.archive`.
            keep: Generations to keep there.
            renew_s: Seconds between renewals of the lock.
            silent_s: Seconds without a renewal after which another run may take the lock over.
        """
        self.uri = uri
        self._keep = keep
        self._is_remote = "://" in uri
        self._lock: Lock = (
            ObjectLock(storage.join(uri, LOCK), renew_s, silent_s)
            if self._is_remote
            else FileLock(Path(uri) / LOCK)
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._copying: Future[None] | None = None
        self._offered: Path | None = None
        self._held = False

    def claim(self) -> None:
        """Become the one run that writes here.

        Raises:
            PreflightError: Another run does.
        """
        self._lock.take()
        self._held = True

    def check(self) -> None:
        """Make sure that no other run has taken over; raises as `claim` does."""
        self._lock.check()

    def offer(self, path: Path) -> None:
        """Copy a generation when the one before is done; of several that wait the newest is copied."""
        self._offered = path
        self._copying = self._thread.submit(self._copy_offered)

    def wait(self) -> None:
        """Return when nothing is being copied any more."""
        if self._copying is not None:
            self._copying.result()

    def close(self) -> None:
        """Finish what is being copied and let other runs write here."""
        self._thread.shutdown()
        if self._held:
            self._lock.release()
            self._held = False

    def fetch(self, folder: Path, origin: Mapping[str, str], above: int = -1) -> bool:
        """Bring the newest sound generation back; whether there was one.

        Args:
            folder: Where generations are.
            origin: What decides the losses.
            above: Of later steps only.

        Raises:
            RecipeError: The newest one belongs to a run with other settings.
        """
        for step in self._steps():
            if step <= above:
                break
            source = storage.join(self.uri, generation.path_of(Path(), step).name)
            target = generation.path_of(folder, step)
            partial = target.with_name(target.name + generation.PARTIAL)
            try:
                self._download(source, partial, origin)
            except IntegrityError as error:
                log.warning("damaged copy in the archive left out: %s", error)
                shutil.rmtree(partial, ignore_errors=True)
                continue
            storage.store(str(target)).put_directory(partial, str(target))
            log.info("checkpoint of step %s comes from %s", f"{step:,}", self.uri)
            return True
        return False

    def _download(self, source: str, partial: Path, origin: Mapping[str, str]) -> None:
        manifest = artifact.read_manifest(source)
        if manifest is None:
            raise IntegrityError(f"{source}: its {MANIFEST} is gone")
        causes = artifact.differences(manifest.origin, origin)
        if causes:
            raise RecipeError(
                f"{source}: checkpoint of a run with other settings ({'; '.join(causes[:5])}); "
                "restore them, or give another pretrain.copies.archive"
            )
        generation.fresh(partial)
        if not self._is_remote:
            shutil.copytree(source, partial, dirs_exist_ok=True)
        else:
            from anadil.s3 import S3

            s3 = S3()
            names = [name for name in (*manifest.files, MANIFEST) if "/" not in name]
            with ThreadPoolExecutor(DOWNLOADS) as threads:
                list(threads.map(lambda name: s3.download(storage.join(source, name), partial / name), names))
        generation.verify(partial, generation.manifest_of(partial))

    def _copy_offered(self) -> None:
        path, self._offered = self._offered, None
        if path is None:
            return  # a newer one was copied instead
        started = time.monotonic()
        try:
            self._lock.check()
            self._copy(path)
            self._remove_old(path.name)
        except (AnadilError, OSError) as error:
            # Training goes on: the next generation is tried anew, and `check` tells of a lost lock.
            log.warning("%s: %s is not copied there: %s", self.uri, path.name, error)
        else:
            log.info("%s copied to %s in %.1f s", path.name, self.uri, time.monotonic() - started)

    def _copy(self, path: Path) -> None:
        target = storage.join(self.uri, path.name)
        store = storage.store(self.uri)
        if self._is_remote:
            # put_directory moves its source: names of their own for the same files.
            source = path.with_name(path.name + generation.UPLOAD)
            shutil.rmtree(source, ignore_errors=True)
            with generation.held(path):
                shutil.copytree(path, source, copy_function=_link)
        else:
            source = Path(target + generation.PARTIAL)
            shutil.rmtree(source, ignore_errors=True)
            with generation.held(path):
                shutil.copytree(path, source)
        if store.exists(storage.join(target, MANIFEST)):
            store.remove_directory(target)  # the same step, before a roll-back
        store.put_directory(source, target)

    def _remove_old(self, written: str) -> None:
        for step in self._steps()[self._keep :]:
            name = generation.path_of(Path(), step).name
            if name != written:
                storage.store(self.uri).remove_directory(storage.join(self.uri, name))

    def _steps(self) -> list[int]:
        """Steps of the finished copies, the newest first."""
        names = [uri.rpartition("/")[2] for uri in storage.store(self.uri).directories(self.uri)]
        return sorted(
            (step for name in names if (step := generation.step_of(name)) is not None), reverse=True
        )


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
            except PreflightError as error:
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


def _taken(uri: str, content: Mapping[str, object]) -> PreflightError:
    where = f" on {content['host']}" if content.get("host") else ""
    return PreflightError(
        f"{uri}: another run{where} writes there now; stop that run, or give this one another pretrain.copies.archive"
    )


def _link(source: str, target: str) -> None:
    """Another name for a file, or a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
