"""Work that several processes do at the same time, and whose failure all of them learn of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from anadil.core.errors import AnadilError

T = TypeVar("T")

FAILURES = (OSError, RuntimeError, AnadilError, CheckpointException)
"""What files, gloo and torch's checkpoints raise; the last of them is no `Exception`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The processes that write or read a generation; one, where each has files of its own."""

    rank: int = 0
    size: int = 1
    host: "dist.ProcessGroup | None" = None
    """A group over gloo; None where there is one process."""

    @property
    def is_first(self) -> bool:
        """Whether this process does what is done once."""
        return self.rank == 0

    def each(self, work: Callable[[], T]) -> list[T]:
        """What `work` returns in every process, by rank.

        Raises:
            OSError | RuntimeError | AnadilError: The failure of the lowest rank that failed, in
                every process.
        """
        if self.host is None:
            return [work()]
        mine: tuple[BaseException | None, T | None]
        try:
            mine = (None, work())
        except FAILURES as error:
            mine = (error, None)
        all_of_them: list[Any] = [None] * self.size
        dist.all_gather_object(all_of_them, mine, group=self.host)
        for failure, _ in all_of_them:
            if failure is not None:
                raise failure
        return [result for _, result in all_of_them]

    def once(self, work: Callable[[], T]) -> T:
        """What `work` returns in the first process, which alone does it; raises as `each` does."""
        first: Any = self.each(lambda: work() if self.is_first else None)[0]
        return cast("T", first)
