"""Behaviour around the steps of pre-training: the hooks that the loop calls."""

from typing import TYPE_CHECKING, Literal

from anadil.pretrain.state import State

if TYPE_CHECKING:
    # The loop knows its callbacks, so they know it by its type alone. A light callback loads no torch.
    from anadil.pretrain.loop import Training
    from anadil.pretrain.trainer import Step

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

    def pre_optim_step(self, step: "Step") -> bool:  # noqa: ARG002  for subclasses
        """Return False to keep the optimizer from using the gradients; `rollback` is called next."""
        return True

    def rollback(self, step: "Step") -> State:
        """Put an earlier state back and return it. Only callbacks whose `pre_optim_step` may return False have it."""
        raise NotImplementedError

    def post_rollback(self) -> None:
        """Follow up on a roll-back to `training.state` by any callback."""

    def post_step(self, step: "Step") -> None:
        """Follow up on a step that `training.state` counts."""

    def pre_save(self, state: State) -> State:
        """Return `state` with what this callback needs after a resume."""
        return state

    def post_train(self) -> None:
        """Finish: all steps are done."""

    def close(self) -> None:
        """Free resources. Called however the run ends."""
