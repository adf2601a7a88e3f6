"""Copies of the training state in main memory: a roll-back without a disk."""

import time
from dataclasses import dataclass, field

import torch

from anadil.pretrain.checkpoint.dcp import Tensors, local_part
from anadil.pretrain.checkpoint.state import State


@dataclass(slots=True, eq=False)
class _Copy:
    state: State
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


class MemoryCopies:
    """What this process holds of parameters and moments, as it was at the last few copies.

    Page-locked where the tensors are on a GPU, so that the copy runs at the speed of the bus.
    The memory of a copy that is given up serves the next one.
    """

    def __init__(self, keep: int = 2) -> None:
        """Keep the newest `keep` copies; each takes as much memory as this process's tensors."""
        self._keep = keep
        self._copies: list[_Copy] = []

    @property
    def states(self) -> list[State]:
        """What there are copies of, the newest first."""
        return [copy.state for copy in reversed(self._copies)]

    def save(self, state: State, tensors: Tensors) -> float:
        """Copy the tensors and return the seconds that training stood still."""
        started = time.monotonic()
        # Steps from here on are about to be done anew, or never were: after a roll-back.
        kept = [copy for copy in self._copies if copy.state.step < state.step]
        given_up = [copy for copy in self._copies if copy not in kept] + kept[
            : max(0, len(kept) + 1 - self._keep)
        ]
        self._copies = [copy for copy in kept if copy not in given_up]
        spare = given_up[0].tensors if given_up else {}
        made = {}
        for name, tensor in tensors.items():
            part = local_part(tensor)
            buffer = spare.get(name)
            if buffer is None or buffer.shape != part.shape or buffer.dtype != part.dtype:
                buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
            made[name] = buffer.copy_(part, non_blocking=True)
        _finish(tensors)
        self._copies.append(_Copy(state, made))
        return time.monotonic() - started

    def restore(self, state: State, tensors: Tensors) -> None:
        """Put the tensors back, in place, as they were at `state`, which is one of `states`.

        Copies of later steps are given up.
        """
        copy = next(copy for copy in self._copies if copy.state == state)
        assert copy.tensors.keys() == tensors.keys(), "a roll-back stays within its phase"
        for name, tensor in tensors.items():
            local_part(tensor).copy_(copy.tensors[name], non_blocking=True)
        _finish(tensors)
        self._copies = [one for one in self._copies if one.state.step <= state.step]

    def clear(self) -> None:
        """Give up all copies, as at the border of a phase."""
        self._copies = []


def _finish(tensors: Tensors) -> None:
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
