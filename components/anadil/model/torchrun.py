"""One process for each GPU of this machine, with exit codes that say what happened.

torchrun itself always exits 1 after a signal or a failed worker, which a cluster takes for a
permanent failure; here a preempted run ends with 143 and a failed one with its worker's code.
"""

import logging
import os
import tempfile
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from anadil.entry import END_VARIABLE, PARENT_VARIABLE

log = logging.getLogger(__name__)

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_S = 110
"""Time for a checkpoint between SIGTERM and SIGKILL; torchrun's own 30 s are too few. A pod's
`terminationGracePeriodSeconds` must be longer."""


def launch(module: str, arguments: Sequence[str], processes: int) -> int:
    """Run `python -m module arguments` in processes that train together; the exit code.

    Args:
        module: What each process runs.
        arguments: Its command line.
        processes: How many on this machine, unless the platform's environment says so.

    Where a platform has set torchrun's own variables (PET_*, as the Kubeflow training operator
    does), they say how many machines there are and where they meet.

    Where processes fail, torchrun starts them again, as often as the platform says. After a failure
    that would come again, those of the same machine end at once, with the same exit code.
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
            os.environ[END_VARIABLE] = f"{folder}/end.json"
            main([*_group_options(processes), "-m", module, *arguments])
    except SignalException as signal:
        return 128 + int(signal.sigval)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0


def _group_options(processes: int) -> list[str]:
    if "PET_RDZV_ENDPOINT" not in os.environ and "PET_MASTER_ADDR" not in os.environ:
        log.info("starting %s processes", processes)
        return ["--standalone", "--nproc-per-node", str(processes)]
    # torchrun takes every PET_ variable as a default. The operator says `auto` where the job
    # does not say how many processes a machine has.
    asked = os.environ.get("PET_NPROC_PER_NODE", "auto")
    number = asked if asked.isdigit() else str(processes)
    log.info("starting %s processes of %s machines", number, os.environ.get("PET_NNODES", "1"))
    return ["--nproc-per-node", number]
