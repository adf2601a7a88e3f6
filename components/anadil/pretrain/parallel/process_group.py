"""The processes of one run: alone, or started by torchrun on one machine or many."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

COLLECTIVE = timedelta(hours=2)
"""Time after which NCCL and gloo break off themselves: later than the watchdog, which says who is stuck."""
PATIENCE = timedelta(hours=12)
"""How long processes wait for the one that encodes the corpus or fetches the base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """This process among those that train together."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    host: Any = None
    """Process group over gloo for waiting; None where there is one process."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes what there is one of."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when every process is here."""
        if self.host is not None:
            dist.monitored_barrier(self.host, timeout=PATIENCE)

    def gather(self, text: str) -> list[str]:
        """A short text of every process, by rank."""
        if self.host is None:
            return [text]
        texts: list[Any] = [None] * self.size
        dist.all_gather_object(texts, text, group=self.host)
        return texts


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """Join the processes that torchrun started; alone where the environment has no RANK."""
    if "RANK" not in os.environ:
        yield Group()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
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
