"""Faults on demand: a callback for tests and drills of how a run lives through them.

ANADIL_INJECT='{"kill": {"step": 5, "rank": 1}, "sleep": {"step": 7, "seconds": 0.2, "until": 30}}'

`python -m tests.kit.fault_injection` is `python -m anadil.pretrain` with the faults of that variable. With `tests/kit/drill`
on PYTHONPATH every pre-training has them, also one that another program starts.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from anadil.core.errors import RecipeError
from anadil.core.reasons import reason_of
from anadil.pretrain import run as stage
from anadil.pretrain.callback import Callback, Section
from anadil.pretrain.resilience.burn_in import INTEGERS
from anadil.recipe.fields import StrictModel
from anadil.runtime.entry_point import main
from anadil.runtime.job import Figures, Job

log = logging.getLogger(__name__)

VARIABLE = "ANADIL_INJECT"
PLAIN_RUN = stage.run
AFTER_STEP = ("validate", "save")
"""Sections that the loop begins when it has counted the step."""


class FaultPlace(StrictModel):
    """Where a fault happens; once in the life of a process."""

    step: PositiveInt
    """Optimizer step, from 1."""
    rank: NonNegativeInt = 0
    section: Section = "forward"


class Sleep(FaultPlace):
    """A process that is slow, in each step up to `until`."""

    seconds: PositiveFloat
    until: NonNegativeInt = 0


class Spike(FaultPlace):
    """A loss that is too large."""

    factor: Annotated[float, Field(gt=1)] = 10.0


class Flip(FaultPlace):
    """One bit of one parameter, chosen by the seed."""

    section: Section = "optimizer"
    seed: NonNegativeInt = 0


class InjectedFaults(StrictModel):
    """Content of ANADIL_INJECT."""

    sleep: Sleep | None = None
    hang: FaultPlace | None = None
    """Waits for ever, in a loop of Python."""
    freeze: FaultPlace | None = None
    """SIGSTOP: no thread of the process runs."""
    kill: FaultPlace | None = None
    """SIGKILL."""
    terminate: FaultPlace | None = None
    """SIGTERM, which the run may answer."""
    oom: FaultPlace | None = None
    nan: FaultPlace | None = None
    spike: Spike | None = None
    flip: Flip | None = None


class FaultInjection(Callback):
    """Causes the faults of one process."""

    def __init__(self, faults: InjectedFaults) -> None:
        self._faults = faults
        self._done: set[str] = set()
        self._last: tuple[str, int] = ("", 0)
        self._hooks: list[Any] = []

    def pre_train(self) -> None:
        """Attach faults to the model's forward hook and to the optimizer's."""
        trainer = self.training.trainer

        def change_loss(_model: nn.Module, _inputs: object, loss: torch.Tensor) -> torch.Tensor:
            # Neither in validation, nor the states that a stage of a pipeline returns.
            return self.loss(loss) if torch.is_grad_enabled() and not loss.ndim else loss

        self._hooks = [
            trainer.net.model.register_forward_hook(change_loss),
            register_optimizer_step_post_hook(lambda *_: self.flip(trainer.tensors(moments=False))),
        ]

    def close(self) -> None:
        """Detach the faults."""
        for hook in self._hooks:
            hook.remove()

    def on_section(self, section: Section) -> None:
        """Cause what is due where a section of a step begins."""
        num_done = self.training.state.step
        step = num_done if section in AFTER_STEP else num_done + 1
        if (section, step) == self._last:
            return
        self._last = (section, step)
        slow = self._faults.sleep
        here = slow is not None and (slow.rank, slow.section) == (self.training.group.rank, section)
        if slow is not None and here and slow.step <= step <= max(slow.until, slow.step):
            time.sleep(slow.seconds)
        for name, number in (
            ("kill", signal.SIGKILL),
            ("freeze", signal.SIGSTOP),
            ("terminate", signal.SIGTERM),
        ):
            if self._is_due(name, section):
                os.kill(os.getpid(), number)
        if self._is_due("oom", section):
            raise torch.OutOfMemoryError(f"CUDA out of memory. Injected by {VARIABLE}")
        if self._is_due("hang", section):
            while True:
                time.sleep(0.01)

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Change the loss of a micro-batch, if that is due."""
        if self._is_due("nan"):
            return loss * float("nan")
        if self._is_due("spike"):
            assert self._faults.spike is not None
            return loss * self._faults.spike.factor
        return loss

    def flip(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Flip one bit of one number of one parameter, if that is due."""
        if not self._is_due("flip"):
            return
        assert self._faults.flip is not None
        generator = torch.Generator().manual_seed(self._faults.flip.seed)

        def drawn(end: int) -> int:
            return int(torch.randint(end, (1,), generator=generator))

        name = sorted(parameters)[drawn(len(parameters))]
        tensor = parameters[name]
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        bits = local.detach().view(-1).view(INTEGERS[local.element_size()])
        at, bit = drawn(len(bits)), drawn(8 * local.element_size() - 1)
        bits[at] ^= 1 << bit
        log.warning("%s: bit %s of number %s of %s is flipped", VARIABLE, bit, at, name)

    def _is_due(self, name: str, section: Section | None = None) -> bool:
        place: FaultPlace | None = getattr(self._faults, name)
        step = self._last[1]
        if (
            place is None
            or name in self._done
            or (place.rank, place.step) != (self.training.group.rank, step)
        ):
            return False
        if section is not None and place.section != section:
            return False
        self._done.add(name)
        log.warning("%s: %s in %s of step %s on rank %s", VARIABLE, name, place.section, step, place.rank)
        return True


def run(job: Job) -> Figures:
    """Run the stage with the faults of ANADIL_INJECT."""
    faults = faults_from_environment()
    return PLAIN_RUN(job, [] if faults is None else [FaultInjection(faults)])


def faults_from_environment() -> InjectedFaults | None:
    """Faults of ANADIL_INJECT; None without it."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        faults = InjectedFaults.model_validate(json.loads(text))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']) or 'all'}: {reason_of(one)}"
            for one in error.errors()
        )
        raise RecipeError(f"{VARIABLE}: {wrong}; correct it, or unset it to train without faults") from None
    except ValueError as error:
        raise RecipeError(f"{VARIABLE}: not JSON ({error}); correct it, or unset it") from None
    log.warning(
        "%s is set: this run causes faults on purpose: %s", VARIABLE, faults.model_dump(exclude_none=True)
    )
    return faults


def hand_in() -> None:
    """Let every run of the stage in this process have the faults."""
    stage.run = run  # type: ignore[assignment]  # without callbacks


if __name__ == "__main__":
    hand_in()
    sys.exit(main("pretrain"))
