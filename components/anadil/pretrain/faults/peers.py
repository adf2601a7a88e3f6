"""What it looks like here when another process of the job is gone."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

from anadil.errors import RetryableError

GONE = re.compile(
    r"Connection (closed|reset) by peer|Read error|Write error|Broken pipe|[Tt]imed out|Application timeout"
    r"|failed to pass monitoredBarrier|Socket closed|NCCL (communicator|operation|error).*(abort|timeout|remote)",
    re.DOTALL,
)
"""Source: gloo/transport/tcp/{pair,unbound_buffer}.cc and torch's ProcessGroup{Gloo,NCCL}.cpp, torch 2.13."""


@contextmanager
def peers(rank: int) -> Iterator[None]:
    """Tell a lost process from a bug of this one, so that its exit code says: start me again.

    Raises:
        RetryableError: A collective broke off because another process has ended or does not answer.
    """
    try:
        yield
    except (DistBackendError, DistNetworkError, DistStoreError) as error:
        raise _lost(rank, error) from error
    except RuntimeError as error:
        # gloo's own errors are plain RuntimeErrors.
        if type(error) is not RuntimeError or not GONE.search(str(error)):
            raise
        raise _lost(rank, error) from error


def _lost(rank: int, error: RuntimeError) -> RetryableError:
    first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    return RetryableError(
        f"rank {rank} has lost another process of the job ({first}); the log of the process that failed first "
        "says why; run the same command again to go on from the last checkpoint"
    )
