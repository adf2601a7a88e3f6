"""Batches of packed sequences as tensors."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch

from anadil.model.loss import IGNORED
from anadil.model.teacher import Teacher
from anadil.tokens.packing import Packed, Sequences
from anadil.tokens.probabilities import StoredProbabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some sequences as tensors of int64, (sequences, tokens) each, and where documents begin in them."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    """Counted from 0 in each piece, and in the padding that ends a row."""
    labels: torch.Tensor
    borders: torch.Tensor
    """(pieces + 1,) of int32, on the host: where each piece or padding begins in the rows one after
    another, then the number of all tokens; a row's begin is always among them."""
    sources: torch.Tensor | None = None
    """(sequences,): number of each row's source; None where there is one."""
    teacher: Teacher | None = None
    """Probabilities that the base gives. None: no row has a teacher."""

    def pinned(self) -> "Batch":
        """The same in page-locked memory, from which a GPU copies while it computes."""
        return self._with(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """The same on a device, borders apart; from page-locked memory without waiting for the copy."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        return replace(
            self,
            input_ids=change(self.input_ids),
            position_ids=change(self.position_ids),
            labels=change(self.labels),
            sources=None if self.sources is None else change(self.sources),
            teacher=self.teacher and self.teacher.changed(change),
        )


def batch_of(
    packed: Packed, sequences: Sequences, *, rows: int = 0, probabilities: StoredProbabilities | None = None
) -> Batch:
    """Make the tensors of some sequences, and of padding up to `rows`. Padding has neither labels nor `probabilities`."""
    rows, length = max(rows, len(sequences)), packed.length
    chosen, sizes, begins = packed.pieces_of(sequences)
    inputs = np.zeros(rows * length, dtype=np.int64)
    labels = np.full(rows * length, IGNORED, dtype=np.int64)
    positions = np.arange(rows * length)
    inputs[begins[chosen[:, 2] == 1]] = packed.stream.bos or 0
    firsts = begins + chosen[:, 2]
    starts, counts = chosen[:, 0], chosen[:, 1]
    slices = packed.stream.slices(starts.tolist(), (starts + counts + 1).tolist())
    teacher = Teacher.nowhere((rows, length), probabilities.facts.k) if probabilities else None
    places = np.stack([firsts, counts, starts], 1).tolist()
    for (at, num, start), ids in zip(places, slices, strict=True):
        inputs[at : at + num] = ids[:-1]
        labels[at : at + num] = ids[1:]
        if teacher and probabilities:
            row, first = divmod(at, length)
            here, read = (row, slice(first, first + num)), probabilities.read(start, start + num)
            teacher.ids[here], teacher.logs[here] = map(torch.from_numpy, read)
    ends = begins + sizes
    borders = np.unique(np.concatenate([begins, ends, np.arange(rows + 1) * length]))
    positions -= np.repeat(borders[:-1], np.diff(borders))
    shape = (rows, length)
    return Batch(
        input_ids=torch.from_numpy(inputs.reshape(shape)),
        position_ids=torch.from_numpy(positions.reshape(shape)),
        labels=torch.from_numpy(labels.reshape(shape)),
        borders=torch.from_numpy(borders.astype(np.int32)),
        teacher=teacher,
    )


def joined(parts: list[Batch]) -> Batch:
    """Rows of several batches of one length, one after another."""
    sizes = [part.input_ids.numel() for part in parts]
    begins = np.cumsum([0, *sizes]).tolist()
    borders = [part.borders[:-1] + begin for part, begin in zip(parts, begins[:-1], strict=True)]
    known = next((part.teacher for part in parts if part.teacher), None)
    teachers = [
        part.teacher or Teacher.nowhere(part.input_ids.shape, known.ids.shape[-1]) for part in parts if known
    ]
    return Batch(
        input_ids=torch.cat([part.input_ids for part in parts]),
        position_ids=torch.cat([part.position_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        borders=torch.cat([*borders, torch.tensor(begins[-1:], dtype=torch.int32)]),
        teacher=known
        and Teacher(
            ids=torch.cat([each.ids for each in teachers]), logs=torch.cat([each.logs for each in teachers])
        ),
    )


T = TypeVar("T")

DEPTH = 2
"""Steps made ahead: one that the next step waits for, one for a slow disk."""


class Prefetcher(Generic[T]):
    """Makes the data of steps one after another, `DEPTH` of them ahead, in one thread. A context manager."""

    def __init__(
        self, make: Callable[[int], T], first_step: int, end_step: int, device: torch.device | None = None
    ) -> None:
        """Begin with `first_step`; `make` is called from the thread and gives data by the step's number alone."""
        self._make = make
        self._end = end_step
        # A thread that pins memory without knowing its GPU would occupy the first GPU of the node.
        on_gpu = device is not None and device.type == "cuda"
        set_device = partial(torch.cuda.set_device, device) if on_gpu else None
        self._thread = ThreadPoolExecutor(1, "anadil-prefetch", initializer=set_device)
        self._ahead: dict[int, Future[T]] = {}
        self.restart(first_step)

    def get(self, step: int) -> T:
        """Return the data of the next step, or raise its error; then begin later ones."""
        future = self._ahead.pop(step)
        try:
            return future.result()
        finally:
            self._begin(step + 1)

    def restart(self, step: int) -> None:
        """Drop the data made ahead and resume from `step`, such as after batches that are skipped."""
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()
        self._begin(step)

    def _begin(self, first: int) -> None:
        for step in range(first, min(first + DEPTH, self._end)):
            if step not in self._ahead:
                self._ahead[step] = self._thread.submit(self._make, step)

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_error: object) -> None:
        # Waited for: the interpreter must not end under a thread that reads mapped files.
        self._thread.shutdown(wait=True, cancel_futures=True)
