"""Checkpoints of a run: in memory, on each node's disk, on the shared disk, in the archive."""

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.artifacts.uri import join
from anadil.core.errors import PreflightError
from anadil.model.process_group import Group
from anadil.pretrain.callback import Callback
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.branch import open_start_point
from anadil.pretrain.checkpoint.dcp import Staging, Tensors, VerifiedCheckpoint, read_tensors
from anadil.pretrain.checkpoint.folder import CheckpointFolder, local_folder
from anadil.pretrain.checkpoint.replica import CheckpointReplica
from anadil.pretrain.checkpoint.start_point import Start, StartWeights
from anadil.pretrain.lr_schedule import ends_phase, phase_of
from anadil.pretrain.parallel.fsdp import local_part
from anadil.pretrain.resilience.out_of_memory import no_room
from anadil.pretrain.state import State, Step
from anadil.pretrain.trainer import Trainer
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
PROBE = ".shared"


class CheckpointStorage(Callback):
    """All places of one run. Every process makes one, at the same point of the program."""

    def __init__(
        self, recipe: Recipe, work: Path, trainer: Trainer, group: Group, origin: Mapping[str, str], *,
        start: Start | None = None, heartbeat: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Claim all places; `work` outlives a killed run, and `start` is that of `pretrain.start_from`. See `CheckpointFolder`."""
        settings = recipe.pretrain
        self._recipe, self._settings, self._trainer, self._group = recipe, settings, trainer, group
        self._copies, self._origin, self._heartbeat = settings.copies, dict(origin), heartbeat
        self.start = start
        """Begin of the run; None for the base."""
        # How layers are gathered changes nothing in a checkpoint.
        layout = settings.parallelism.model_dump_json(exclude={"prefetch", "reshard"})
        self.is_shared = _is_shared(work, group)
        # Each node would hold a part of the model that no other can read.
        if not self.is_shared and trainer.net.mesh.shares_model:
            raise PreflightError(
                f"{work}: is not the same directory on all nodes, and processes that share a model share their "
                "checkpoints too; put cluster.work (or storage.root) on a volume that all nodes mount"
            )
        folder, replica = work / CHECKPOINTS, None
        if self._copies.archive:
            if not self.is_shared:
                raise PreflightError(
                    f"{work}: is not the same directory on all nodes, from which pretrain.copies.archive is written; "
                    "put cluster.work (or storage.root) on a volume that all nodes mount"
                )
            # A directory for each run: one lock, one origin.
            uri = join(self._copies.archive, artifact.origin_key(dict(origin)))
            points = settings.plateau_ends
            replica = CheckpointReplica(uri, self._copies.archive_keep, points=points)
        self.durable = CheckpointFolder(
            folder if self.is_shared else local_folder(folder, origin, layout, group), group, origin,
            settings.keep_checkpoints, points=settings.plateau_ends, per_process=not self.is_shared,
            replica=replica, needed=recipe.averaged_steps, heartbeat=heartbeat,
        )  # fmt: skip
        self._local = None
        if self._copies.local_every:
            place = local_folder(Path(str(self._copies.local_path)), origin, layout, group)
            self._local = CheckpointFolder(
                place, group, origin, self._copies.local_keep, per_process=True, optional=True
            )
        # The nearest first: its checkpoints need not be read from farther away.
        self._tiers = [tier for tier in (self._local, self.durable) if tier is not None]
        self._memory = Staging() if settings.faults.on_anomaly == "skip" else None
        self._snapshot: tuple[State, Tensors] | None = None

    def resume(self) -> State | None:
        """Restore the newest checkpoint, else begin as `pretrain.start_from` says; None where training begins with the base."""
        best, state = newest_of(self._tiers), None
        if best is not None:
            source, checkpoint = best
            log.info("the newest checkpoint is %s", checkpoint.path)
            state = self._restore(checkpoint, source.load)
            self._group.run_on_first(lambda: self._refuse_lost_steps(checkpoint.state.step))
        elif isinstance(self.start, StartWeights):
            log.info("training begins with the weights of %s, and new moments", self.start.place)
            state = self.start.state
        elif self.start is not None:
            with open_start_point(
                self.start, self._recipe, self._origin, self._trainer.data, self._group, self._heartbeat
            ) as checkpoint:
                state = self._restore(
                    checkpoint, lambda it, tensors: read_tensors(it, tensors, self._group.host)
                )
        # Also without a checkpoint: an older start may have left later steps.
        for tier in self._tiers:
            tier.discard_later_checkpoints(-1 if state is None else state.step)
        return state

    def _refuse_lost_steps(self, done: int) -> None:
        """Refuse to go on where a checkpoint that is to be averaged has gone: no step writes it again."""
        present, steps = directory.steps(self.durable.folder), self._recipe.averaged_steps
        if lost := [step for step in steps if step <= done and step not in present]:
            raise PreflightError(
                f"{self.durable.folder}: pretrain.average_last is {len(steps)}, the mean of checkpoints "
                f"{directory.listed(list(steps))}, and the run has come past {directory.listed(lost)}, which it no longer has "
                f"(there: {directory.listed(present)}); average fewer, or remove the directory to train again"
            )

    def _restore(
        self, checkpoint: VerifiedCheckpoint, load: Callable[[VerifiedCheckpoint, Tensors], None]
    ) -> State:
        state, phases = checkpoint.state, self._settings.phases
        within = not ends_phase(state.step, phases)
        if within:
            self._trainer.begin_phase(phase_of(state.step, phases)[0])
            self._trainer.allocate(state.step)
        load(checkpoint, self._trainer.tensors(moments=within))
        if within:
            self.snapshot(state, force=True)
        if state.branch is not None and state.branch.warmup is not None:
            self._trainer.warmups = {phase_of(state.branch.step, phases)[0]: state.branch.warmup}
        return state

    def pre_save(self, state: State) -> State:
        """Add what the run makes, for another one that begins with the checkpoint."""
        return replace(state, run=self.training.job.target)

    def post_phase_start(self) -> None:
        """Take the first snapshot of a phase, so that its first steps can be rolled back."""
        if self._memory is not None:
            state = self.training.state
            with no_room(self._recipe, "allocating the optimizer", rank=self._group.rank):
                self._trainer.allocate(state.step)
                self.snapshot(state, force=True)

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Save where it is due, and when the run ends."""
        run, rank = self.training, self._group.rank
        done = run.state.step
        if run.ends or self.due(done):
            with run.metrics.section("checkpoint"), no_room(self._recipe, f"saving step {done}", rank=rank):
                run.enter("save")
                state = run.state
                for each in run.callbacks:
                    state = each.pre_save(state)
                self.save(state, force=run.ends)
            run.job.stop.unsaved = False
        with no_room(self._recipe, f"keeping a copy of step {done}", rank=rank):
            self.snapshot(run.state)

    def post_train(self) -> None:
        """Wait for the last checkpoint."""
        self.training.enter("start")  # grants a slow disk a long time, so that it is no hang
        self.durable.wait()

    def due(self, step: int) -> bool:
        """Return whether the durable tier or the node's disk gets a copy after `step`."""
        every, local = self._settings.checkpoint_every, self._copies.local_every
        return self._is_milestone(step) or step % every == 0 or bool(local and step % local == 0)

    def save(self, state: State, *, force: bool = False) -> None:
        """Write where it is due; with `force` to the durable tier, and wait for it: the run is about to end."""
        is_point = state.step in self._settings.plateau_ends
        # At a phase's end the next start makes a new optimizer, so moments would be dead weight. Where the rate never
        # falls, a branch makes the phase longer and needs them.
        tensors = self._trainer.tensors(moments=is_point or not ends_phase(state.step, self._settings.phases))
        if force or self._is_milestone(state.step) or state.step % self._settings.checkpoint_every == 0:
            self.durable.save(state, tensors)
            if force:
                self.durable.wait()
        elif self._local is not None:
            self._local.save(state, tensors)

    def branch_points(self) -> list[dict[str, Any]]:
        """Step and place of each checkpoint that outlives the run, for `pretrain.start_from`; after `finish`."""
        points = [
            {"step": step, "place": place}
            for step, places in self.durable.branch_points().items()
            for place in places
        ]
        for each in points:
            log.info("to branch off before the rate falls: pretrain.start_from=%s", each["place"])
        return points

    def _is_milestone(self, step: int) -> bool:
        """Return whether `step` ends a phase or its flat part, where a checkpoint is due whatever the interval."""
        return ends_phase(step, self._settings.phases) or step in self._settings.plateau_ends

    def snapshot(self, state: State, *, force: bool = False) -> None:
        """Copy to memory for `restore_snapshot` where that is due, or with `force` in any case."""
        if self._memory is None:
            return
        # At a phase's end with `force` the optimizer has begun the next phase.
        if ends_phase(state.step, self._settings.phases) and not force:
            self._snapshot = None
            return
        every = self._copies.memory_every or self._settings.checkpoint_every
        if force or state.step % every == 0 or self.due(state.step):
            self._snapshot = (state, self._memory.copy(self._trainer.tensors(moments=True)))

    def restore_snapshot(self) -> State:
        """Restore the newest copy in memory; return where the run stood then."""
        assert self._snapshot is not None
        state, saved = self._snapshot
        for name, tensor in self._trainer.tensors(moments=True).items():
            local_part(tensor).copy_(local_part(saved[name]))
        self._trainer.set_step(state.step)
        self._trainer.net.after_step()  # scales of FP8 follow the weights
        return state

    def invalidate_after(self, step: int) -> None:
        """Keep later starts from resuming after a step; every process calls it."""
        for tier in self._tiers:
            tier.invalidate_after(step)

    def finish(self) -> None:
        """Finish all copies and free the node's disk; every process calls it. Without it `close` aborts them."""
        self.durable.wait()
        # The disk of the node is freed only when the durable tier has everything.
        if self._local is not None:
            self._local.remove()
        self.durable.finish()

    def close(self) -> None:
        """Finish what is being written, but abort copies to the archive; raises where that fails."""
        try:
            if self._local is not None:
                self._local.close()
        finally:
            self.durable.close()
        if self._memory is not None:
            self._memory.close()


def newest_of(tiers: list[CheckpointFolder]) -> tuple[CheckpointFolder, VerifiedCheckpoint] | None:
    """Find the newest checkpoint of several tiers; of equal ones the nearest. Raises as `CheckpointFolder.newest`."""
    best: tuple[CheckpointFolder, VerifiedCheckpoint] | None = None
    for tier in tiers:
        newer = tier.newest(after=best[1].state.step if best else -1)
        if newer is not None:
            best = (tier, newer)
    return best


def _is_shared(work: Path, group: Group) -> bool:
    """Return whether every process sees the first one's work directory."""
    if group.size == 1:
        return True
    probe = work / PROBE
    mine = uuid.uuid4().hex
    if group.is_first:
        # A file tells what paths and mount tables do not: whether others see it.
        probe.write_text(mine, encoding="utf-8")
    of_first = group.gather(mine)[0]
    sees = probe.is_file() and probe.read_text(encoding="utf-8") == of_first
    return all(answer == "yes" for answer in group.gather("yes" if sees else "no"))
