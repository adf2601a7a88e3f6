"""Replicas of finished checkpoints in another place, an `s3://` prefix or a directory: one run at a time writes there."""

import logging
import os
import shutil
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from time import monotonic

from anadil.artifacts import prefetch, storage
from anadil.artifacts.lease import RENEW_S, SILENT_S, FileLease, Lease, StandingObjectLease, Taken
from anadil.artifacts.s3 import S3
from anadil.artifacts.uri import MANIFEST, Count, join
from anadil.core.errors import AnadilError, DataError, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.pretrain.checkpoint import directory
from anadil.runtime.cache_key import origin_changes

log = logging.getLogger(__name__)

LOCK = "writer.json"
REMEDY = "stop that run, or give this one another pretrain.copies.archive"
LOOK_S = 10.0
"""Between two checks of a download: far below the silence that the watchdog takes for a hang."""


class CheckpointReplica:
    """Uploads checkpoints in the background; the manifest last."""

    def __init__(
        self, uri: str, keep: int, *, points: Collection[int] = (), renew_s: float = RENEW_S,
        silent_s: float = SILENT_S,
    ) -> None:  # fmt: skip
        """Set up; every process may make one, and the first alone uses it. See `Lease` for the times.

        `points` are steps that are all copied, and kept beside the newest.
        """
        self.uri = uri
        self._keep, self._points = keep, frozenset(points)
        self._is_remote = "://" in uri
        kind = StandingObjectLease if self._is_remote else FileLease
        self._lease: Lease = kind(join(uri, LOCK), REMEDY, renew_s, silent_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._working: Future[None] | None = None
        self._queued: list[Path] = []
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._moved = 0

    def claim(self) -> None:
        """Become the one run that writes here, and remove partial copies of a killed run."""
        self._lease.acquire()
        try:
            self._clean_partials()
        except (AnadilError, OSError) as error:
            log.warning("%s: partial copies there cannot be removed: %s", self.uri, error)

    def check(self) -> None:
        """Make sure that no other run has taken over, as far as the storage answers."""
        try:
            self._lease.check()
        except Taken:
            raise
        except AnadilError as error:
            log.warning("%s: the lock cannot be read; training continues: %s", self.uri, error)

    def enqueue_upload(self, *paths: Path) -> None:
        """Copy checkpoints in the background, the newest and branch points; replicas of later steps are removed."""
        with self._turn:
            for path in paths:
                queued = [each for each in self._queued if directory.step_in_name(each.name) in self._points]
                self._queued = [*queued, path]
        if paths:
            self._working = self._thread.submit(self._copy_queued)

    def place_of(self, step: int) -> str:
        """Where the finished replica of a step lies; empty where there is none, or the storage does not answer."""
        place = join(self.uri, directory.path_of(Path(), step).name)
        try:
            return place if storage.store(place).exists(join(place, MANIFEST)) else ""
        except (AnadilError, OSError) as error:
            log.warning("%s: cannot be looked up: %s", place, error)
            return ""

    def invalidate_after(self, after: int) -> None:
        """Wait for the copy under way, then remove the replicas of steps after `after`."""
        self.wait()
        try:
            self._lease.check()
            self._remove(step for step in self._steps() if step > after)
        except (AnadilError, OSError) as error:
            log.warning("%s: replicas of steps after %s have to be removed there: %s", self.uri, after, error)

    def wait(self) -> None:
        """Return when nothing is being copied any more."""
        if self._working is not None:
            self._working.result()

    def close(self) -> None:
        """Abort the copy under way, and let other runs write here."""
        self._ended.set()
        self._thread.shutdown(cancel_futures=True)
        self._lease.release()

    def fetch(self, folder: Path, origin: Mapping[str, str], after: int = -1) -> None:
        """Begin to fetch the newest sound checkpoint after step `after` into `folder`; see `fetched`."""
        self._working = self._thread.submit(self._fetch, folder, origin, after)

    def fetched(self) -> tuple[bool, int]:
        """Wait up to `LOOK_S`; return if the fetch is done, and the bytes so far."""
        assert self._working is not None
        done, _ = wait([self._working], timeout=LOOK_S)
        for working in done:
            working.result()
        return bool(done), self._moved

    def _fetch(self, folder: Path, origin: Mapping[str, str], after: int) -> None:
        for step in self._steps():
            if step <= after:
                return
            source = join(self.uri, directory.path_of(Path(), step).name)
            target = directory.path_of(folder, step)
            draft = target.with_suffix(directory.DOWNLOAD)
            try:
                self._download(source, draft, origin)
            except IntegrityError as error:
                log.warning("damaged replica in the archive skipped: %s", error)
                shutil.rmtree(draft, ignore_errors=True)
                continue
            # Renamed whole, so that a kill leaves a draft and no half checkpoint.
            storage.LocalStore().put_directory(draft, str(target))
            log.info("checkpoint of step %s comes from %s", f"{step:,}", self.uri)
            return

    def _download(self, source: str, draft: Path, origin: Mapping[str, str]) -> None:
        """Fetch a checkpoint into `draft`, without the files that an earlier start has fetched."""
        fetch = prefetch.fetch_from(source)

        def counted(name: str, path: Path, count: Count) -> None:
            def both(num: int) -> None:
                count(num)
                self._count(num)

            fetch(name, path, both)

        try:
            # The manifest first: a run with other settings need not fetch terabytes to be refused.
            fetch(MANIFEST, draft / MANIFEST, self._count)
            manifest = directory.manifest_of(draft)
            causes = origin_changes(manifest.origin, origin, STAGES["pretrain"].keys)
            if causes:
                raise RecipeError(
                    f"{source}: checkpoint of a run with other settings ({'; '.join(causes[:5])}); "
                    "restore them, or give another pretrain.copies.archive"
                )
            remedy = "put storage.root on a larger disk"
            prefetch.fill(draft, manifest.files, counted, source, remedy)
        except DataError as error:  # an object that is gone
            raise IntegrityError(str(error)) from None

    def _copy_queued(self) -> None:
        while True:
            with self._turn:
                if not self._queued:
                    return
                path = self._queued.pop(0)
                # Only the newest says which others are to be removed.
                is_last = not self._queued
            self._copy_one(path, is_last=is_last)

    def _copy_one(self, path: Path, *, is_last: bool) -> None:
        started = monotonic()
        try:
            # Before each copy: a run that was silent may have been succeeded.
            self._lease.check()
            if self._has(path):
                log.info("%s is in %s already", path.name, self.uri)
            else:
                self._copy(path)
                log.info("%s copied to %s in %.1f s", path.name, self.uri, monotonic() - started)
            if is_last:
                self._remove_others(path)
        except CancelledError:
            log.info("%s: copying %s is broken off; the next start does it", self.uri, path.name)
        except (AnadilError, OSError) as error:
            # Training continues: the next checkpoint is retried, and `check` tells of a lost lock.
            log.warning("%s: %s is not copied there: %s", self.uri, path.name, error)

    def _has(self, path: Path) -> bool:
        # A manifest of the same step before a roll-back differs.
        store, manifest = storage.store(self.uri), join(self.uri, path.name, MANIFEST)
        return store.exists(manifest) and store.read(manifest) == (path / MANIFEST).read_bytes()

    def _copy(self, path: Path) -> None:
        target = join(self.uri, path.name)
        store = storage.store(self.uri)
        # put_directory moves its source: for an upload, names of their own for the same files.
        source = path.with_suffix(directory.UPLOAD) if self._is_remote else Path(target + directory.PARTIAL)
        shutil.rmtree(source, ignore_errors=True)
        try:
            with directory.hold_open(path):
                shutil.copytree(path, source, copy_function=_link if self._is_remote else self._copy_file)
            if store.exists(join(target, MANIFEST)):
                store.remove_directory(target)
            if self._is_remote:
                S3().upload_directory(source, target, self._count)
            else:
                store.put_directory(source, target)
        finally:
            shutil.rmtree(source, ignore_errors=True)

    def _copy_file(self, source: str, target: str) -> None:
        storage.LocalStore().download(source, Path(target), self._count)

    def _count(self, num: int) -> None:
        """Count bytes that were copied; raises where the run ends."""
        if self._ended.is_set():
            # The one error in the middle of an upload after which botocore does not repeat the request.
            raise CancelledError
        self._moved += num

    def _remove_others(self, path: Path) -> None:
        """Keep the newest few up to a step; later ones are of a run that has resumed from before them."""
        written = directory.step_in_name(path.name)
        assert written is not None
        steps = self._steps()
        later = [step for step in steps if step > written]
        if later:
            log.warning(
                "%s: the run resumed from an earlier step; removing the replicas of steps %s",
                self.uri, directory.listed(later),
            )  # fmt: skip
        newest = [step for step in steps[len(later) :] if step not in self._points]
        self._remove([*later, *newest[self._keep :]])

    def _remove(self, steps: Iterable[int]) -> None:
        for step in steps:
            uri = join(self.uri, directory.path_of(Path(), step).name)
            storage.store(self.uri).remove_directory(uri)

    def _clean_partials(self) -> None:
        """Remove checkpoints without a manifest or under a draft's name; nobody else writes here."""
        store = storage.store(self.uri)
        finished = {directory.path_of(Path(), step).name for step in self._steps()}
        present = {PurePosixPath(file).relative_to(self.uri).parts[0] for file in store.files(self.uri)}
        for name in sorted(present - finished):
            if name.startswith("step-"):
                store.remove_directory(join(self.uri, name))
        if self._is_remote:
            S3().abort_uploads(self.uri)

    def _steps(self) -> list[int]:
        """Steps of the finished copies, the newest first."""
        names = [uri.rpartition("/")[2] for uri in storage.store(self.uri).directories(self.uri)]
        steps = (directory.step_in_name(name) for name in names)
        return sorted((step for step in steps if step is not None), reverse=True)


def _link(source: str, target: str) -> None:
    try:
        # A link costs nothing, and the file stays when the checkpoint is removed meanwhile.
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
