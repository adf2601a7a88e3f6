"""The next steps' data, made in the background while the present step runs."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

import torch

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
