"""Errors that mean that another process of the job is gone, or that this one's GPU is broken."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

from anadil.core.errors import RetryableError
from anadil.runtime.termination import PEER_LOST

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
