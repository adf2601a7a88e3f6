"""Faults on demand, for tests of how a run lives through them; off unless ANADIL_INJECT is set.

ANADIL_INJECT='{"kill": {"step": 5, "rank": 1}, "sleep": {"step": 7, "seconds": 0.2, "until": 30}}'
"""

import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from torch.distributed.tensor import DTensor

from anadil.core.errors import RecipeError
from anadil.pretrain.resilience.replica_check import INTEGERS
from anadil.pretrain.resilience.watchdog import Section
from anadil.recipe.fields import StrictModel

log = logging.getLogger(__name__)

VARIABLE = "ANADIL_INJECT"


class Place(StrictModel):
    """Where a fault happens; once in the life of a process."""

    step: PositiveInt
    """Optimizer step, from 1."""
    rank: NonNegativeInt = 0
    section: Section = "forward"


class Sleep(Place):
    """A process that is slow, in each step up to `until`."""

    seconds: PositiveFloat
    until: NonNegativeInt = 0


class Spike(Place):
    """A loss that is too large."""

    factor: Annotated[float, Field(gt=1)] = 10.0


class Flip(Place):
    """One bit of one parameter, chosen by the seed."""

    section: Section = "optimizer"
    seed: NonNegativeInt = 0


class Faults(StrictModel):
    """What ANADIL_INJECT may hold."""

    sleep: Sleep | None = None
    hang: Place | None = None
    """Waits for ever, in a loop of Python."""
    freeze: Place | None = None
    """SIGSTOP: no thread of the process runs."""
    kill: Place | None = None
    """SIGKILL."""
    terminate: Place | None = None
    """SIGTERM, which the run may answer."""
    oom: Place | None = None
    nan: Place | None = None
    spike: Spike | None = None
    flip: Flip | None = None


class Injector:
    """Causes the faults of one process."""

    def __init__(self, faults: Faults, rank: int) -> None:
        """Nothing happens before the calls below.

        Args:
            faults: What to cause.
            rank: Of this process.
        """
        self._faults = faults
        self._rank = rank
        self._done: set[str] = set()

    def inject(self, section: Section, step: int) -> None:
        """Cause what is due where a section of a step (from 1) begins.

        Raises:
            torch.OutOfMemoryError: If that is due.
        """
        slow = self._faults.sleep
        here = slow is not None and (slow.rank, slow.section) == (self._rank, section)
        if slow is not None and here and slow.step <= step <= max(slow.until, slow.step):
            time.sleep(slow.seconds)
        for name, number in (
            ("kill", signal.SIGKILL),
            ("freeze", signal.SIGSTOP),
            ("terminate", signal.SIGTERM),
        ):
            if self._is_due(name, section, step):
                os.kill(os.getpid(), number)
        if self._is_due("oom", section, step):
            raise torch.OutOfMemoryError(f"CUDA out of memory. Injected by {VARIABLE}")
        if self._is_due("hang", section, step):
            while True:
                time.sleep(0.01)

    def loss(self, loss: torch.Tensor, step: int) -> torch.Tensor:
        """The loss of a micro-batch, or what a fault makes of it."""
        if self._is_due("nan", None, step):
            return loss * float("nan")
        if self._is_due("spike", None, step):
            assert self._faults.spike is not None
            return loss * self._faults.spike.factor
        return loss

    def flip(self, parameters: Mapping[str, torch.Tensor], step: int) -> None:
        """Flip one bit of one number of one parameter, if that is due."""
        if not self._is_due("flip", None, step):
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

    def _is_due(self, name: str, section: Section | None, step: int) -> bool:
        place: Place | None = getattr(self._faults, name)
        if place is None or name in self._done or (place.rank, place.step) != (self._rank, step):
            return False
        if section is not None and place.section != section:
            return False
        self._done.add(name)
        log.warning("%s: %s in %s of step %s on rank %s", VARIABLE, name, place.section, step, self._rank)
        return True


def injector(rank: int) -> Injector:
    """What ANADIL_INJECT asks for; without it, one that does nothing.

    Raises:
        RecipeError: It cannot be read.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return Injector(Faults(), rank)
    try:
        faults = Faults.model_validate(json.loads(text))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']) or 'all'}: {one['msg']}" for one in error.errors()
        )
        raise RecipeError(f"{VARIABLE}: {wrong}; correct it, or unset it to train without faults") from None
    except ValueError as error:
        raise RecipeError(f"{VARIABLE}: not JSON ({error}); correct it, or unset it") from None
    log.warning(
        "%s is set: this run causes faults on purpose: %s", VARIABLE, faults.model_dump(exclude_none=True)
    )
    return Injector(faults, rank)
