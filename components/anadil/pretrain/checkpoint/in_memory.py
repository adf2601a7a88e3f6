"""A replica of the training state in main memory: a roll-back without a disk."""

import torch

from anadil.pretrain.checkpoint.dcp import Tensors
from anadil.pretrain.parallel.ddp import local_part
from anadil.pretrain.state import State


class MemoryReplica:
    """This process's parameters and moments, as they were when they were last saved.

    Page-locked where the tensors are on a GPU, so that the copy runs at the speed of the bus.
    """

    def __init__(self) -> None:
        self._saved: tuple[State, Tensors] | None = None

    def save(self, state: State, tensors: Tensors) -> None:
        """Copy the tensors, into the memory of the copy before where they fit."""
        spare = self._saved[1] if self._saved is not None else {}
        buffers = {}
        for name, tensor in tensors.items():
            part = local_part(tensor)
            buffer = spare.get(name)
            # A buffer is reused: page-locked memory is slow to allocate.
            if buffer is None or buffer.shape != part.shape or buffer.dtype != part.dtype:
                buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
            buffers[name] = buffer.copy_(part, non_blocking=True)
        _finish(tensors)
        self._saved = (state, buffers)

    def restore(self, tensors: Tensors) -> State:
        """Put the tensors back, in place; where the run stood when they were saved."""
        assert self._saved is not None
        state, saved = self._saved
        # The next phase trains other tensors, and `clear` comes before it.
        assert saved.keys() == tensors.keys(), "a roll-back stays within its phase"
        for name, tensor in tensors.items():
            local_part(tensor).copy_(saved[name], non_blocking=True)
        _finish(tensors)
        return state

    def clear(self) -> None:
        """Forget it, as at the end of a phase."""
        self._saved = None


def _finish(tensors: Tensors) -> None:
    if any(tensor.is_cuda for tensor in tensors.values()):
        # Copies were queued. Without this the next step would change their source.
        torch.cuda.synchronize()
