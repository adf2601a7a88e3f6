"""One process for each GPU of this node, with exit codes that say what happened.

torchrun itself always exits 1 after a signal or a failed worker, which a cluster takes for a
permanent failure; here a preempted run ends with 143 and a failed one with its worker's code.
"""

import json
import logging
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import main

from anadil.core.errors import AnadilError, RetryableError
from anadil.runtime.environment import END_VARIABLE, PARENT_VARIABLE
from anadil.runtime.termination import PEER_LOST

log = logging.getLogger(__name__)

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_S = 110
"""Time for a checkpoint between SIGTERM and SIGKILL; torchrun's own 30 s are too few. A pod's
`terminationGracePeriodSeconds` must be longer."""


def launch_group(module: str, arguments: Sequence[str], processes: int) -> int:
    """Run `python -m module arguments` in processes that train together; return the exit code.

    Variables of torchrun (PET_*), as the Kubeflow training operator sets them, say how many processes and nodes there are
    and where they meet. torchrun restarts failed processes, as often as the platform says. After a failure that would come
    again, those of the same node end at once, with the same exit code.
    """
    os.environ.setdefault(SHUTDOWN_VARIABLE, str(SHUTDOWN_S))
    # torchrun's own store outlives a failed start, and the next one would find the addresses of dead processes
    # in it; so the first process of each start keeps a new one. Source: torch 2.13, seen with gloo.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if PARENT_VARIABLE in os.environ:
        # The workers' parent is this process, which itself does not outlive the run.
        os.environ[PARENT_VARIABLE] = str(os.getpid())
    try:
        # A new directory: neither another job nor the next start of this container may find it.
        with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
            end = Path(folder, "end.json")
            os.environ[END_VARIABLE] = str(end)
            try:
                main([*_group_options(processes), "-m", module, *arguments])
            except (ChildFailedError, RendezvousError, DistNetworkError, DistStoreError):
                _raise_said(end)
                raise
    except SignalException as signal:
        return 128 + int(signal.sigval)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    except (RendezvousError, DistNetworkError, DistStoreError) as error:
        raise RetryableError(
            f"{socket.gethostname()} has {PEER_LOST} ({type(error).__name__} where the nodes meet, "
            f"{os.environ.get('PET_RDZV_ENDPOINT') or 'this machine'}); the log of the node that failed first says "
            "why; run the same command again to resume from the last checkpoint"
        ) from error
    return 0


def _raise_said(end: Path) -> None:
    """Raise the error that one process has left: the others ended because it did."""
    try:
        payload = json.loads(end.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    error = AnadilError(payload["message"])
    error.exit_code = payload["exit_code"]
    raise error


def _group_options(processes: int) -> list[str]:
    if "PET_RDZV_ENDPOINT" not in os.environ and "PET_MASTER_ADDR" not in os.environ:
        log.info("starting %s processes", processes)
        return ["--standalone", "--nproc-per-node", str(processes)]
    # torchrun takes every PET_ variable as a default. The operator says `auto` where the job
    # does not say how many processes a node has.
    asked = os.environ.get("PET_NPROC_PER_NODE", "auto")
    number = asked if asked.isdigit() else str(processes)
    log.info("starting %s processes of %s nodes", number, os.environ.get("PET_NNODES", "1"))
    return ["--nproc-per-node", number]
