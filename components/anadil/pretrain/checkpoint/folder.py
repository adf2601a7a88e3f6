"""Checkpoints in one folder: written in the background, sealed, verified byte by byte before use."""

import contextlib
import logging
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import distributed as dist

from anadil.artifacts import artifact
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import AnadilError, IntegrityError, PreflightError, RecipeError
from anadil.core.stages import STAGES
from anadil.model.process_group import FAILURES, Group
from anadil.pretrain.checkpoint import dcp, directory
from anadil.pretrain.checkpoint.replica import CheckpointReplica
from anadil.pretrain.parallel.fsdp import local_part
from anadil.pretrain.state import State
from anadil.runtime import prometheus
from anadil.runtime.cache_key import origin_changes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the slowest to write. Assumption; 30 min write 1 TiB at 0.6 GB/s."""
NOTABLE_S = 1.0
"""A wait for the checkpoint before that is worth a warning."""


class CheckpointFolder:
    """The checkpoints in one directory. Every process makes one, at the same point of the program."""

    def __init__(
        self, folder: Path, group: Group, origin: Mapping[str, str], keep: int, *,
        points: Collection[int] = (), per_process: bool = False, optional: bool = False,
        replica: CheckpointReplica | None = None, needed: Collection[int] = (),
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Claim the archive.

        A resume with another `origin` is refused. Steps in `points` and `needed` stay beyond the newest `keep`; `points`
        outlive the run. `heartbeat` is called while a download from the archive makes progress: it is no hang.
        """
        # `per_process`: the folder is on the node's disk and holds the part of this process alone. Only the same
        # layout and processes can use it. `optional`: a failure to write is a warning, since another tier has one.
        self.folder, self._all, self._origin, self._keep = folder, group, dict(origin), keep
        self._per_process, self._optional = per_process, optional
        self._points, self._needed = frozenset(points), frozenset((*points, *needed))
        self._replica, self._heartbeat = replica, heartbeat
        self._uploads = replica if group.is_first else None
        self._writers = Group() if per_process else group
        if self._writers.host is not None:
            # Its own group: the thread's messages must not mix with those of training.
            background: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
            self._writers = replace(group, host=background)
        self._staging = dcp.Staging()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: tuple[State, Future[None]] | None = None
        if replica is not None:
            # Before any step: a run that may not write there must not train for hours.
            self._all.run_on_first(replica.claim)

    def save(self, state: State, tensors: dcp.Tensors) -> None:
        """Copy the tensors, then write them in a background thread. Every process calls it."""
        started = time.monotonic()
        # One save at a time: a second copy in main memory may not fit.
        before = self._running
        self.wait()
        waited = time.monotonic() - started
        if before is not None and waited > NOTABLE_S and self._all.is_first:
            log.warning(
                "training waited %.1f s for the checkpoint of step %s; "
                "raise pretrain.checkpoint_every or write to a faster disk",
                waited, f"{before[0].step:,}",
            )  # fmt: skip
        if self._per_process:
            tensors = {name: local_part(tensor) for name, tensor in tensors.items()}
        # From here on training may change the tensors.
        staged = self._staging.copy(tensors)
        self._running = (state, self._thread.submit(self._write, state, staged))

    def wait(self) -> None:
        """Return when nothing is being written here any more; raises as `save` does."""
        if self._running is None:
            return
        written, self._running = self._running[1], None
        if self._per_process and not self._optional:
            # Each process has written a checkpoint of its own; the run ends as the worst of them.
            self._all.run_everywhere(written.result)
            return
        try:
            written.result()
        except AnadilError as error:
            if not self._optional:
                raise
            log.warning("%s", error)

    def finish(self) -> None:
        """Wait until everything is written, also to the archive; raises as `save` does."""
        self.wait()
        if self._uploads is not None:
            self._uploads.wait()

    def branch_points(self) -> dict[int, list[str]]:
        """Step -> places of the branch points that are kept, here and in the archive; after `finish`, on the first process."""
        places = {
            step: [str(directory.path_of(self.folder, step))]
            for step in sorted(self._points.intersection(directory.steps(self.folder)))
        }
        if self._uploads is not None:
            for step in sorted(self._points):
                if place := self._uploads.place_of(step):
                    places.setdefault(step, []).append(place)
        return places

    def remove(self) -> None:
        """Remove all checkpoints of this process, whose disk is its own."""
        self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other processes of the node still have theirs
            self.folder.parent.rmdir()

    def close(self) -> None:
        """Finish what is being written here, but abort a copy to the archive; raises as `save` does."""
        try:
            if self._running is not None:
                # Not agreed on: a process that fails comes here alone.
                self._running[1].result()
        finally:
            self._thread.shutdown()
            self._staging.close()
            if self._uploads is not None:
                self._uploads.close()

    def newest(self, after: int = -1) -> dcp.VerifiedCheckpoint | None:
        """Return the newest sound checkpoint after step `after`; every process calls it and gets the same step.

        Damaged ones are set aside as `step-N.damaged`, and the one before is taken.
        """
        checkpoint = self._newest(after)
        if checkpoint is not None or self._replica is None:
            return checkpoint
        if self._all.run_on_first(lambda: directory.steps(self.folder)):
            return None
        if self._all.is_first:
            self._replica.fetch(self.folder, self._origin, after)
        done, before = False, -1
        # Every process has to come round, or its watchdog takes the download for a hang.
        while not done:
            done, moved = self._all.run_on_first(self._replica.fetched)
            if moved != before:
                self._heartbeat()
            before = moved
        return self._newest(after)

    def discard_later_checkpoints(self, step: int) -> None:
        """Remove or rename checkpoints after `step` (-1 for none), from which the run resumes.

        Every process calls it, for each tier. The archive gets the checkpoint if it lacks it.
        """
        self._tidy(lambda: directory.discard_later(self.folder, step, remove=self._optional))
        paths = [
            directory.path_of(self.folder, each) for each in sorted({*self._points, step}) if 0 < each <= step
        ]
        if self._uploads is not None:
            self._uploads.enqueue_upload(*(path for path in paths if (path / MANIFEST).is_file()))

    def invalidate_after(self, step: int) -> None:
        """Set aside checkpoints of later steps, and remove them from the archive; every process calls it."""
        self.wait()
        self._tidy(lambda: directory.discard_later(self.folder, step, remove=self._optional))
        if self._uploads is not None:
            self._uploads.invalidate_after(step)

    def load(self, checkpoint: dcp.VerifiedCheckpoint, tensors: dcp.Tensors) -> None:
        """Fill tensors in place from the result of `newest`; raises as `read_tensors`.

        Every process calls it with those of the checkpoint's tensors that it holds, in any layout.
        """
        if self._per_process:
            dcp.read_tensors(checkpoint, {name: local_part(tensor) for name, tensor in tensors.items()}, None)
        else:
            dcp.read_tensors(checkpoint, tensors, self._all.host)

    def _write(self, state: State, staged: dcp.Tensors) -> None:
        writers = self._writers
        target = directory.path_of(self.folder, state.step)
        partial = target.with_name(target.name + directory.PARTIAL)
        try:
            writers.run_on_first(lambda: _make_anew(partial))
            dcp.write_tensors(staged, partial, writers.host)
            del staged
            parts = writers.run_everywhere(lambda: directory.describe_files(self._written(partial)))
            files = {name: entry for part in parts for name, entry in part.items()}
            is_point = state.step in self._points
            writers.run_on_first(
                lambda: directory.commit(partial, state, self._origin, files, is_point=is_point)
            )
        except FAILURES as error:
            if writers.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, AnadilError):
                raise
            raise dcp.failure(error, self.folder, state.step) from None
        # Every process has to hear of a lost lock, not only the one that copies.
        if self._replica is not None:
            writers.run_on_first(self._replica.check)
        if not writers.is_first:
            return
        if self._uploads is not None:
            self._uploads.enqueue_upload(target)
        try:
            # Only now: until the new one is sealed the old ones are all there is.
            directory.retain(self.folder, self._keep, state.step, self._needed)
        except OSError as error:
            log.warning("%s: old checkpoints cannot be removed (%s)", self.folder, error)
        if self._all.is_first and not self._optional:
            prometheus.saved_checkpoint("pretrain", state.step)

    def _written(self, partial: Path) -> list[Path]:
        mine = sorted(partial.glob(f"__{self._writers.rank}_*"))
        return [*mine, partial / dcp.METADATA] if self._writers.is_first else mine

    def _newest(self, after: int) -> dcp.VerifiedCheckpoint | None:
        self._tidy(lambda: directory.clean_partials(self.folder))
        listings = self._all.run_everywhere(lambda: (socket.gethostname(), directory.steps(self.folder)))
        # A step that one process lacks cannot be resumed from.
        common = set(listings[0][1]).intersection(*(listing for _, listing in listings))
        if self._all.is_first:
            self._warn_of_odd_steps(listings, common)
        for step in sorted(each for each in common if each > after)[::-1]:
            checkpoint = self._verified(directory.path_of(self.folder, step))
            if checkpoint is not None:
                return checkpoint
        return None

    def _warn_of_odd_steps(self, listings: list[tuple[str, list[int]]], common: set[int]) -> None:
        latest = max(common, default=-1)
        odd = [listing for _, listing in listings if set(listing) != common]
        # A process may lack the newest step and still have an older checkpoint of its own.
        if not odd or (self._per_process and all(max(listing, default=-1) <= latest for listing in odd)):
            return
        log.warning(
            "%s: processes have checkpoints of different steps (%s), and only a step that all of them have counts%s",
            self.folder, directory.who_has(listings),
            "" if self._per_process else "; all nodes have to share its disk",
        )  # fmt: skip

    def _verified(self, path: Path) -> dcp.VerifiedCheckpoint | None:
        """Verify a checkpoint; None where some process finds it damaged, which then sets it aside."""
        # On a shared disk each process reads its share, so that 1 TiB is read once.
        share = (0, 1) if self._per_process else (self._all.rank, self._all.size)
        words = self._all.run_everywhere(lambda: damage_of(path, *share))
        damages = [text for text in words if text]
        if damages:
            damaged = words[self._all.rank] if self._per_process else damages[0]
            aside = self._tidy(lambda: str(directory.set_aside(path)) if damaged else "")
            if damaged and (self._per_process or self._all.is_first):
                log.warning(
                    "damaged checkpoint set aside as %s, going back to the one before: %s", aside, damaged
                )
            return None
        manifest = directory.manifest_of(path)
        # After the bytes: the origin of a damaged manifest says nothing.
        causes = origin_changes(manifest.origin, self._origin, STAGES["pretrain"].keys)
        if causes:
            raise RecipeError(
                f"{path}: checkpoint of a run with other settings ({'; '.join(causes[:5])}); "
                f"restore them, give another --out, or remove {self.folder} to start over"
            )
        read: list[Metadata] = []
        self._all.run_everywhere(lambda: read.append(dcp.read_metadata(path, manifest.files)))
        name = path / directory.STATE
        state = State.from_json(name.read_bytes(), str(name))
        if state.step != manifest.records["step"]:
            raise IntegrityError(f"{name}: says step {state.step}; remove {path}")
        return dcp.VerifiedCheckpoint(path=path, state=state, metadata=read[0])

    def _tidy(self, work: Callable[[], T]) -> T:
        """Change the directory: each process its own, the first one that of all."""
        if self._per_process:
            return self._all.run_everywhere(work)[self._all.rank]
        return self._all.run_on_first(work)


def local_folder(path: Path, origin: Mapping[str, str], layout: str, group: Group) -> Path:
    """Name the directory below `path` for a process's own checkpoints on its node's disk."""
    # Another layout or origin has another directory, so that nothing unreadable is in it.
    key = artifact.origin_key({**origin, "layout": layout, "processes": str(group.size)})
    return path / key / f"rank-{group.rank}"


def damage_of(path: Path, rank: int, size: int) -> str:
    """Describe the damage of a checkpoint, empty for none; `IntegrityError` if it was made to run code."""
    try:
        directory.verify_part(path, directory.manifest_of(path), rank, size)
    except IntegrityError as error:
        dcp.refuse_hostile(path)
        return str(error)
    except PermissionError as error:
        raise PreflightError(f"{path}: may not be read ({error}); grant access") from None
    except OSError as error:
        return f"{path}: cannot be read ({error})"
    return ""


def _make_anew(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)  # where it fails, the error says why
    folder.mkdir(parents=True)
