"""One process for each GPU of this machine, with exit codes that say what happened.

torchrun itself always exits 1 after a signal or a failed worker, which a cluster takes for a
permanent failure; here a preempted run ends with 143 and a failed one with its worker's code.
"""

import logging
import os
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from anadil.entry import PARENT_VARIABLE

log = logging.getLogger(__name__)

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_S = 110
"""Time for a checkpoint between SIGTERM and SIGKILL; torchrun's own 30 s are too few. A pod's
`terminationGracePeriodSeconds` must be longer."""


def launch(module: str, arguments: Sequence[str], processes: int) -> int:
    """Run `python -m module arguments` in some processes that train together; the exit code.

    A code that torchrun was given by the environment (several machines, a rendezvous) is not
    looked at here: such processes are started by torchrun itself and have a RANK.
    """
    os.environ.setdefault(SHUTDOWN_VARIABLE, str(SHUTDOWN_S))
    if PARENT_VARIABLE in os.environ:
        # The workers' parent is this process, which itself does not outlive the run.
        os.environ[PARENT_VARIABLE] = str(os.getpid())
    log.info("starting %s processes", processes)
    try:
        main(["--standalone", "--nproc-per-node", str(processes), "-m", module, *arguments])
    except SignalException as signal:
        return 128 + int(signal.sigval)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0
