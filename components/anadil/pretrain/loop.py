"""The training loop. Callbacks add everything else that happens around a step.

`callbacks.py` lists the callbacks. Every process has the same ones and calls each hook in that order.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import BudgetReached
from anadil.model.process_group import Group
from anadil.pretrain.callback import Callback, Section
from anadil.pretrain.data.batch import Prefetcher
from anadil.pretrain.lr_schedule import ends_phase, phase_of
from anadil.pretrain.metrics.metrics import Metrics
from anadil.pretrain.resilience.out_of_memory import out_of_memory
from anadil.pretrain.state import SourceState, State
from anadil.pretrain.trainer import Batches, Step, Trainer
from anadil.runtime.job import Job

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Training:
    """One start of a run, from its last checkpoint to its last step."""

    job: Job
    trainer: Trainer
    group: Group
    metrics: Metrics
    callbacks: Sequence[Callback]
    state: State
    """Where the run stands."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Lines of `training.jsonl`; on the first process."""
    figures: dict[str, float] = field(default_factory=dict)
    """Metrics that callbacks add to the next logged line."""
    is_phase_end: bool = False
    """The step was the last of its phase."""
    is_log_due: bool = False
    """The step gets a line. Every process has the same answer, since they compare themselves for it."""
    signal: int = 0
    """Signal that ends the run after this step; 0 for none."""
    spent: str = ""
    """Reason why the budget ends the run after this step; empty for none."""
    _clock: float = 0.0

    @property
    def ends(self) -> bool:
        """True if the run ends after this step, which is saved whatever the interval."""
        return bool(self.signal or self.spent)

    @property
    def is_validation_due(self) -> bool:
        """True after a step that ends a phase, and each `validate_every` steps."""
        every = self.job.recipe.pretrain.validate_every
        return self.is_phase_end or (bool(every) and self.state.step % every == 0)

    @property
    def is_branching(self) -> bool:
        """True before the first step that follows the checkpoint of another run."""
        return self.state.branch is not None and self.state.branch.step == self.state.step

    @property
    def seconds(self) -> float:
        """Time in training, over all starts."""
        return time.monotonic() - self._clock

    def train(self) -> None:
        """Do the remaining steps."""
        settings, stop, trainer = self.job.recipe.pretrain, self.job.stop, self.trainer
        trainer.collective_wait = self._collective_wait
        if self.state.step and not self.is_branching:
            log.info("resuming after step %s", f"{self.state.step:,}")
        with stop.deferred():
            stop.unsaved = False
            self._clock = time.monotonic() - self.state.seconds
            self.metrics.resume_after(self.state.step)
            for each in self.callbacks:
                each.training = self
            for each in self.callbacks:
                each.pre_train()
            with Prefetcher(trainer.batches, self.state.step, settings.steps, device=trainer.device) as data:
                while self.state.step < settings.steps:
                    self._begin_phase()
                    with self.metrics.section("data"):
                        self.enter("data")
                        batches = data.get(self.state.step)
                    step, objector = self._step(batches)
                    if objector is not None:
                        self.state = objector.rollback(step)
                        self.metrics.resume_after(self.state.step)
                        for each in self.callbacks:
                            each.post_rollback()
                        # Batches made ahead are those of later steps, or of batches that are skipped now. A callback
                        # may have changed the order of the sources.
                        data.restart(self.state.step)
                        continue
                    self._count(step)
                    for each in self.callbacks:
                        each.post_step(step)
                    # Only here: the callback that saves has seen that the run ends.
                    if self.signal:
                        stop.signal = self.signal
                        stop.leave()
                    if self.spent:
                        raise BudgetReached(self.spent)
            for each in self.callbacks:
                each.post_train()

    def _step(self, batches: Batches) -> tuple[Step, Callback | None]:
        """Do one optimizer step, unless a callback objects to its gradients; then return that callback."""
        with self.metrics.section("step"), self.out_of_memory(self.state.step + 1):
            self.enter("forward")
            step = self.trainer.gradients(self.state.step, batches, self.job.stop.signal or 0)
            # Every process sees the same sums, so all of them object or none does.
            objector = next((each for each in self.callbacks if not each.pre_optim_step(step)), None)
            self.enter("optimizer")
            if objector is None:
                self.trainer.apply()
        return step, objector

    def _count(self, step: Step) -> None:
        settings, done = self.job.recipe.pretrain, self.state.step + 1
        # From here on a signal waits until the step is saved.
        self.job.stop.unsaved = True
        sources = {
            name: SourceState(tokens=before.tokens + loss.tokens, since_line=before.since_line + loss)
            for name, loss in step.sources.items()
            for before in [self.state.sources.get(name, SourceState())]
        }
        tokens = self.state.tokens + step.tokens
        self.state = State(
            step=done, tokens=tokens, seconds=self.seconds, sources=sources, branch=self.state.branch
        )
        self.metrics.step_done(done)
        self.signal = step.signal
        self.is_phase_end = ends_phase(done, settings.phases)
        self.is_log_due = done == 1 or done % settings.log_every == 0 or self.is_phase_end

    def _begin_phase(self) -> None:
        settings = self.job.recipe.pretrain
        number, within = phase_of(self.state.step, settings.phases)
        if within:
            return
        phase = settings.phases[number]
        self.enter("start")
        self.trainer.begin_phase(number)
        log.info(
            "phase %s trains %s: %s parameters, %s steps, learning rate %g",
            number + 1, phase.trains, f"{self.trainer.num_trainable(number):,}", f"{phase.steps:,}", phase.lr,
        )  # fmt: skip
        for each in self.callbacks:
            each.post_phase_start()

    def enter(self, section: Section) -> None:
        """Tell the callbacks that a part of a step begins."""
        for each in self.callbacks:
            each.on_section(section)

    def out_of_memory(self, step: int) -> AbstractContextManager[None]:
        """Turn a lack of memory in the block into an error with a remedy."""
        size, rank = self.trainer.micro_batch_size, self.group.rank
        return out_of_memory(self.job.recipe, self.job.work, size, step=step, rank=rank)

    @contextmanager
    def _collective_wait(self) -> Iterator[None]:
        # This process has done its part of a step. What follows is no work of its own.
        self.enter("reduce")
        with self.metrics.stragglers.section(None):
            yield
