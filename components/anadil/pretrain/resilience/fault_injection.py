"""Faults on demand, for tests and drills of how a run lives through them; off unless ANADIL_INJECT is set.

The training loop knows nothing of them: they are attached to its section hook, to the model's forward
hook and to the optimizer's.

ANADIL_INJECT='{"kill": {"step": 5, "rank": 1}, "sleep": {"step": 7, "seconds": 0.2, "until": 30}}'
"""

import json
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from anadil.core.errors import RecipeError
from anadil.core.reasons import reason_of
from anadil.pretrain.loop import Training
from anadil.pretrain.resilience.replica_check import INTEGERS
from anadil.pretrain.resilience.watchdog import Section
from anadil.recipe.fields import StrictModel

log = logging.getLogger(__name__)

VARIABLE = "ANADIL_INJECT"
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
    """What ANADIL_INJECT may hold."""

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


class Injector:
    """Causes the faults of one process."""

    def __init__(self, faults: InjectedFaults, rank: int) -> None:
        """Nothing happens before the calls below.

        Args:
            faults: What to cause.
            rank: Of this process.
        """
        self._faults = faults
        self._rank = rank
        self._done: set[str] = set()
        self._last: tuple[str, int] = ("", 0)

    def section(self, section: Section, num_done: int) -> None:
        """Cause what is due where a section of a step begins; `Training.on_section`.

        Args:
            section: Which one; those that report themselves several times in a step count once.
            num_done: Optimizer steps done, with or without this one.

        Raises:
            torch.OutOfMemoryError: If that is due.
        """
        step = num_done if section in AFTER_STEP else num_done + 1
        if (section, step) == self._last:
            return
        self._last = (section, step)
        slow = self._faults.sleep
        here = slow is not None and (slow.rank, slow.section) == (self._rank, section)
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
        """The loss of a micro-batch, or what a fault makes of it."""
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
        if place is None or name in self._done or (place.rank, place.step) != (self._rank, step):
            return False
        if section is not None and place.section != section:
            return False
        self._done.add(name)
        log.warning("%s: %s in %s of step %s on rank %s", VARIABLE, name, place.section, step, self._rank)
        return True


@contextmanager
def injected(training: Training) -> Iterator[None]:
    """Attach the faults of ANADIL_INJECT to a run inside the block; without it, nothing.

    Raises:
        RecipeError: ANADIL_INJECT cannot be read.
    """
    faults = faults_from_environment()
    if faults is None:
        yield
        return
    injector = Injector(faults, training.group.rank)
    trainer = training.trainer

    def change_loss(_model: nn.Module, _inputs: object, loss: torch.Tensor) -> torch.Tensor:
        # Neither in validation, nor the states that a stage of a pipeline returns.
        return injector.loss(loss) if torch.is_grad_enabled() and not loss.ndim else loss

    def flip(*_: object) -> None:
        injector.flip(trainer.tensors(moments=False))

    training.on_section = injector.section
    hooks = [trainer.net.model.register_forward_hook(change_loss), register_optimizer_step_post_hook(flip)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def faults_from_environment() -> InjectedFaults | None:
    """What ANADIL_INJECT asks for; None without it.

    Raises:
        RecipeError: It cannot be read.
    """
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
