"""Where a run is saved: in memory, on each node's disk, on the shared disk, in the archive."""

import logging
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.uri import join
from anadil.core.errors import PreflightError
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.in_memory import MemoryReplica
from anadil.pretrain.checkpoint.manager import CheckpointManager, local_folder
from anadil.pretrain.checkpoint.replica import Archive
from anadil.pretrain.checkpoint.state import State, VerifiedCheckpoint
from anadil.pretrain.lr_schedule import ends_phase, phase_of
from anadil.pretrain.trainer import Trainer
from anadil.recipe.sections import Recipe
from anadil.runtime import prometheus

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
PROBE = ".shared"


class Tiers:
    """All places of one run, each with its own distance between copies."""

    def __init__(
        self,
        recipe: Recipe,
        work: Path,
        trainer: Trainer,
        group: Group,
        origin: Mapping[str, str],
        *,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Every process makes one, at the same point of the program.

        Args:
            recipe: The run's.
            work: Directory that outlives a killed run.
            trainer: What is saved.
            group: All processes.
            origin: What decides the losses; a resume with another one is refused.
            beat: Called as long as a download from the archive continues: it is no hang.

        Raises:
            PreflightError: Another run writes to the archive, or the nodes share no disk where that is needed.
        """
        settings = recipe.pretrain
        self._settings, self._trainer, self._group = settings, trainer, group
        self._copies = settings.copies
        # How layers are gathered changes nothing in a checkpoint.
        layout = settings.parallelism.model_dump_json(exclude={"prefetch", "reshard"})
        self.is_shared = _is_shared(work, group)
        if not self.is_shared and trainer.net.mesh.shares_model:
            raise PreflightError(
                f"{work}: is not the same directory on all nodes, and processes that share a model share their "
                "checkpoints too; put cluster.work (or storage.root) on a volume that all nodes mount"
            )
        folder = work / CHECKPOINTS
        archive = (
            # A directory for each run: one lock, one origin.
            Archive(join(self._copies.archive, artifact.origin_key(dict(origin))), self._copies.archive_keep)
            if self._copies.archive and self.is_shared
            else None
        )
        if self._copies.archive and archive is None:
            raise PreflightError(
                f"{work}: is not the same directory on all nodes, from which pretrain.copies.archive is written; "
                "put cluster.work (or storage.root) on a volume that all nodes mount"
            )
        self.durable = CheckpointManager(
            folder if self.is_shared else local_folder(folder, origin, layout, group),
            group,
            origin,
            settings.keep_checkpoints,
            own=not self.is_shared,
            archive=archive,
            on_saved=lambda state: prometheus.saved_checkpoint("pretrain", state.step),
            beat=beat,
        )
        self._local = None
        if self._copies.local_every:
            place = local_folder(Path(str(self._copies.local_path)), origin, layout, group)
            self._local = CheckpointManager(
                place, group, origin, self._copies.local_keep, own=True, optional=True
            )
        self._tiers = [tier for tier in (self._local, self.durable) if tier is not None]
        self._memory = MemoryReplica() if settings.faults.on_anomaly == "skip" else None

    def resume(self) -> State | None:
        """Put back what an earlier start saved; None where it saved nothing."""
        best = newest_of(self._tiers)
        if best is not None:
            self._restore(*best)
        for tier in self._tiers:
            tier.resumed(best[1].state.step if best is not None else -1)
        return best[1].state if best is not None else None

    def _restore(self, tier: CheckpointManager, found: VerifiedCheckpoint) -> None:
        log.info("the newest checkpoint is %s", found.path)
        step = found.state.step
        phases = self._settings.phases
        within = not ends_phase(step, phases)
        if within:
            self._trainer.begin_phase(phases[phase_of(step, phases)[0]])
            self._trainer.allocate(step)
        tier.load(found, self._trainer.tensors(moments=within))
        if within:
            self.remember(found.state, at_once=True)

    def due(self, step: int) -> bool:
        """Whether the durable tier or the node's disk gets a copy after `step`."""
        every, local = self._settings.checkpoint_every, self._copies.local_every
        border = ends_phase(step, self._settings.phases)
        return border or step % every == 0 or bool(local and step % local == 0)

    def save(self, state: State, *, now: bool = False) -> None:
        """Write where it is due after `state.step`.

        Args:
            state: Where the run stands.
            now: On the durable tier in any case, and wait until it is there: the run is about to end.
        """
        border = ends_phase(state.step, self._settings.phases)
        durable = now or border or state.step % self._settings.checkpoint_every == 0
        tensors = self._trainer.tensors(moments=not border)
        if durable:
            self.durable.save(state, tensors)
            if now:
                self.durable.wait()
        elif self._local is not None:
            self._local.save(state, tensors)

    def remember(self, state: State, *, at_once: bool = False) -> None:
        """Keep a copy in memory where that is due, for `go_back`.

        Args:
            state: Where the run stands.
            at_once: In any case; at a phase's border its optimizer has begun the next phase.
        """
        if self._memory is None:
            return
        if ends_phase(state.step, self._settings.phases) and not at_once:
            self._memory.clear()
            return
        every = self._copies.memory_every or self._settings.checkpoint_every
        if at_once or state.step % every == 0 or self.due(state.step):
            self._memory.save(state, self._trainer.tensors(moments=True))

    def go_back(self) -> State:
        """Put the newest copy in memory back; where the run stood then."""
        assert self._memory is not None
        state = self._memory.restore(self._trainer.tensors(moments=True))
        self._trainer.set_step(state.step)
        self._trainer.net.after_step()  # scales of FP8 follow the weights
        return state

    def distrust(self, since: int) -> None:
        """Do not let a later start resume from what was saved after the step `since`; every process calls it."""
        for tier in self._tiers:
            tier.distrust(since)

    def finished(self) -> None:
        """All steps are done: finish all copies, and free the node's disk; raises where that fails.

        Every process calls it. Without it `close` breaks off what is being copied to the archive.
        """
        self.durable.wait()
        if self._local is not None:
            self._local.remove()
        self.durable.finish()

    def close(self) -> None:
        """Finish what is being written, but break off copies to the archive; raises where it could not be."""
        try:
            if self._local is not None:
                self._local.close()
        finally:
            self.durable.close()


def newest_of(tiers: list[CheckpointManager]) -> tuple[CheckpointManager, VerifiedCheckpoint] | None:
    """The newest checkpoint of several tiers, the nearest first; a farther one must be newer.

    Raises:
        RecipeError: A checkpoint belongs to a run with other settings.
        IntegrityError: A checkpoint was made to run code.
    """
    best: tuple[CheckpointManager, VerifiedCheckpoint] | None = None
    for tier in tiers:
        found = tier.newest(above=best[1].state.step if best else -1)
        if found is not None:
            best = (tier, found)
    return best


def _is_shared(work: Path, group: Group) -> bool:
    """Whether every process sees the first one's work directory."""
    if group.size == 1:
        return True
    probe = work / PROBE
    mine = uuid.uuid4().hex
    if group.is_first:
        probe.write_text(mine, encoding="utf-8")
    wanted = group.gather(mine)[0]
    sees = probe.is_file() and probe.read_text(encoding="utf-8") == wanted
    return all(answer == "yes" for answer in group.gather("yes" if sees else "no"))
