"""Behaviour around the steps of pre-training: the hooks that the loop calls, and the run that they see."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from anadil.pretrain.lr_schedule import ends_phase
from anadil.pretrain.state import State, Step

if TYPE_CHECKING:
    # A light callback loads no torch.
    from anadil.model.process_group import Group
    from anadil.pretrain.metrics.metrics import Metrics
    from anadil.pretrain.trainer import Trainer
    from anadil.runtime.job import Job

Section = Literal["start", "load", "data", "forward", "backward", "reduce", "optimizer", "save", "validate"]


class Callback:
    """Behaviour around the steps of a run. A hook that is not overridden does nothing."""

    training: "Training"
    """Set before the first hook is called."""

    def pre_train(self) -> None:
        """Prepare: the model is loaded, `training.state` says where the run resumes."""

    def on_section(self, section: Section) -> None:
        """Note that a part of a step begins."""

    def post_phase_start(self) -> None:
        """Follow up on a new phase, whose optimizer has no moments yet."""

    def pre_optim_step(self, step: Step) -> bool:  # noqa: ARG002  for subclasses
        """Return False to keep the optimizer from using the gradients; `rollback` is called next."""
        return True

    def rollback(self, step: Step) -> State:
        """Put an earlier state back and return it. Only callbacks whose `pre_optim_step` may return False have it."""
        raise NotImplementedError

    def post_rollback(self) -> None:
        """Follow up on a roll-back to `training.state` by any callback."""

    def post_step(self, step: Step) -> None:
        """Follow up on a step that `training.state` counts."""

    def pre_save(self, state: State) -> State:
        """Return `state` with what this callback needs after a resume."""
        return state

    def post_train(self) -> None:
        """Finish: all steps are done."""

    def close(self) -> None:
        """Free resources. Called however the run ends."""


@dataclass(slots=True, kw_only=True)
class Training:
    """One start of a run, from its last checkpoint to its last step."""

    job: "Job"
    trainer: "Trainer"
    group: "Group"
    metrics: "Metrics"
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
    clock: float = 0.0
    """Time at which a run without a break would have begun."""

    @property
    def ends(self) -> bool:
        """True if the run ends after this step, which is saved whatever the interval."""
        return bool(self.signal or self.spent)

    def gets_line(self, step: int) -> bool:
        """True if an optimizer step, from 1, is logged whatever callbacks add to it."""
        settings = self.job.recipe.pretrain
        return step == 1 or step % settings.log_every == 0 or ends_phase(step, settings.phases)

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
        return time.monotonic() - self.clock

    def enter(self, section: Section) -> None:
        """Tell the callbacks that a part of a step begins."""
        for each in self.callbacks:
            each.on_section(section)
