"""Processes of one run: alone, or started by torchrun on one node or many."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import distributed as dist
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError
from torch.distributed.checkpoint.api import CheckpointException

from anadil.core.errors import AnadilError, RetryableError
from anadil.runtime.termination import PEER_LOST

T = TypeVar("T")

COLLECTIVE = timedelta(hours=2)
"""Time after which NCCL and gloo break off themselves: later than the watchdog, which says who is stuck."""
PATIENCE = timedelta(hours=12)
"""Time that processes wait for the one that encodes the corpus or fetches the base model."""
FAILURES = (OSError, RuntimeError, AnadilError, CheckpointException)
"""Errors of files, gloo and torch's checkpoints. The last of them is no `Exception`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """This process among those that train together, or write and read a checkpoint."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    host: Any = None
    """Process group over gloo for waiting; None where there is one process."""

    @property
    def is_first(self) -> bool:
        """True for the process that writes what there is one of."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when every process is here."""
        if self.host is not None:
            dist.monitored_barrier(self.host, timeout=PATIENCE)

    def local_first(self, work: Callable[[bool], T]) -> T:
        """Call `work(True)` in one process of each node, and after it `work(False)` in the others."""
        makes = self.local_rank == 0
        if not makes:
            self.wait()
        result = work(makes)
        if makes:
            self.wait()
        return result

    def gather(self, text: str) -> list[str]:
        """Return a short text of every process, by rank."""
        if self.host is None:
            return [text]
        texts: list[Any] = [None] * self.size
        dist.all_gather_object(texts, text, group=self.host)
        return texts

    def run_everywhere(self, work: Callable[[], T]) -> list[T]:
        """Return the results of `work` in every process, by rank. A failure of one is raised in all of them."""
        if self.host is None:
            return [work()]
        # A process that raised alone would leave the others waiting in their next collective.
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

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Return the result of `work` in the first process, which alone does it; raises as `run_everywhere` does."""
        first: Any = self.run_everywhere(lambda: work() if self.is_first else None)[0]
        return cast("T", first)


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """Join the processes that torchrun started; alone where the environment has no RANK."""
    if "RANK" not in os.environ:
        yield Group()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Tensors of the CPU, as in checkpoints, go over gloo.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=COLLECTIVE)
    try:
        yield Group(
            rank=dist.get_rank(),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            size=dist.get_world_size(),
            host=dist.new_group(backend="gloo", timeout=PATIENCE),
        )
    finally:
        dist.destroy_process_group()


GONE = re.compile(
    r"Connection (closed|reset) by peer|Connection refused|connectFullMesh failed|Read error|Write error|Broken pipe"
    r"|[Tt]imed out|Application timeout|failed to pass monitoredBarrier|Socket closed|NCCL (communicator|operation|error).*(abort|timeout|remote)",
    re.DOTALL,
)
"""Source: gloo/transport/tcp/{pair,unbound_buffer}.cc and torch's ProcessGroup{Gloo,NCCL}.cpp, torch 2.13."""
BROKEN = re.compile(
    r"uncorrectable|\bECC\b|hardware stack error|NVLink|unspecified launch failure|unknown error|is lost|contained",
    re.IGNORECASE,
)
"""Source: the texts of cudaGetErrorString for errors of the device, CUDA 13; those of a program's own
errors, such as a failed assertion or an illegal address, are not among them."""


@contextmanager
def peers(rank: int) -> Iterator[None]:
    """Tell a lost process and a broken GPU from a bug, so that the exit code says: start me again."""
    try:
        yield
    except torch.AcceleratorError as error:
        if not BROKEN.search(_first_line(error)):
            raise
        raise RetryableError(
            f"rank {rank} on {socket.gethostname()}: the GPU failed ({_first_line(error)}); take that node out "
            "of service and run the same command again to resume from the last checkpoint"
        ) from error
    except (DistBackendError, DistNetworkError, DistStoreError) as error:
        raise _lost(rank, error) from error
    except RuntimeError as error:
        # gloo's own errors are plain RuntimeErrors.
        if type(error) is not RuntimeError or not GONE.search(str(error)):
            raise
        raise _lost(rank, error) from error


def _lost(rank: int, error: RuntimeError) -> RetryableError:
    return RetryableError(
        f"rank {rank} has {PEER_LOST} ({_first_line(error)}); the log of the process that failed first "
        "says why; run the same command again to resume from the last checkpoint"
    )


def _first_line(error: RuntimeError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
