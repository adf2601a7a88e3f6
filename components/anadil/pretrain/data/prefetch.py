"""The next steps' data, made in the background while the present step runs.

What a step gets depends on its number alone, never on how far the background is.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

DEPTH = 2
"""Steps made ahead: one that is waited for by the next, one for a slow disk."""


class Prefetcher(Generic[T]):
    """Makes what steps need, `depth` of them ahead, in one thread.

    Used as a context manager, or closed with `close`; an error while something is made is raised
    by the `get` of its step.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        first_step: int,
        end_step: int,
        depth: int = DEPTH,
        device: torch.device | None = None,
    ) -> None:
        """Begin with `first_step`.

        Args:
            make: What a step needs, from its number; called from the thread, for one step at a time.
            first_step: The step that is asked for first.
            end_step: The first step that is never asked for.
            depth: Steps made ahead, at least 1.
            device: GPU of this process. A thread that pins memory without knowing it would
                occupy the first GPU of the node.
        """
        assert depth >= 1
        self._make = make
        self._end = end_step
        self._depth = depth
        on_gpu = device is not None and device.type == "cuda"
        self._thread = ThreadPoolExecutor(
            1, "anadil-prefetch", initializer=partial(torch.cuda.set_device, device) if on_gpu else None
        )
        self._ahead: dict[int, Future[T]] = {}
        self.restart(first_step)

    def get(self, step: int) -> T:
        """Return what `step` needs, waiting if it is not ready; then begin the next ones.

        Any order is answered rightly; but for one after another, `restart` comes first.
        """
        assert step < self._end
        if step not in self._ahead:
            self.restart(step)
        future = self._ahead.pop(step)
        try:
            return future.result()
        finally:
            for earlier in [number for number in self._ahead if number < step]:
                # Skipped steps are not asked for again; their batches would hold memory.
                self._ahead.pop(earlier).cancel()
            self._begin(step + 1)

    def restart(self, step: int) -> None:
        """Forget what was made and resume from `step`, such as after batches that are left out."""
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()
        self._begin(step)

    def close(self) -> None:
        """End the thread, after what it is making now."""
        # Waited for: the interpreter must not end under a thread that reads mapped files.
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _begin(self, first: int) -> None:
        for step in range(first, min(first + self._depth, self._end)):
            if step not in self._ahead:
                self._ahead[step] = self._thread.submit(self._make, step)

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
