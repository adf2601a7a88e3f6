"""Limits of a process that works on records: memory, CPU time for each record, and the life of its parent.

CPU time and not time on the clock: a loaded machine must not change what is kept.
"""

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable

from anadil.core.format import GIB
from anadil.core.processes import data_bytes, die_with, limit

MEMORY_BYTES = 2 * GIB
"""That a process may take beside what it has at its start. Measured: a line of 15 MiB takes .4 GiB."""
RECORD_CPU_S = 60
"""For one record. Measured: the slowest page that is no bomb takes 2 s; a line of 15 MiB takes 8 s."""
OUT_OF_MEMORY = 77
"""Exit code of a process whose memory limit was reached."""

_limited_until: int | None = None
"""Second of CPU time from which on the limit is to be set again; None: this process has no limits."""


def limit_process() -> None:
    """Set the limits of this process; it must do nothing else but work on records."""
    global _limited_until  # noqa: PLW0603  limits are those of the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    if (now := data_bytes()) and (hardest == resource.RLIM_INFINITY or now + MEMORY_BYTES < hardest):
        resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY_BYTES, hardest))
    _limited_until = 0


def allow_one_more_record() -> None:
    """Give the record that comes next its CPU time; where it is not enough the system kills the process."""
    global _limited_until  # noqa: PLW0603  limits are those of the process
    if _limited_until is None or (now := time.process_time()) < _limited_until:
        return
    _limited_until = int(now) + 1
    limit(resource.RLIMIT_CPU, _limited_until + RECORD_CPU_S)


def describe_exit(exit_code: int | None) -> str:
    """Describe in words how a process ended."""
    if exit_code == OUT_OF_MEMORY:
        return f"more than {MEMORY_BYTES // GIB} GiB of memory"
    if exit_code == -signal.SIGXCPU:
        return f"more than {RECORD_CPU_S} s of CPU time"
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def death_alone(function: Callable[..., None], *arguments: object, fork: bool = False) -> str:
    """Call a function in a process of its own; return how that died, empty if it came to its end."""
    start = multiprocessing.get_context("fork") if fork else multiprocessing.get_context("spawn")
    process = start.Process(target=_call, args=(os.getpid(), function, *arguments), name="anadil-clean-alone")
    process.start()
    process.join()
    return describe_exit(process.exitcode) if process.exitcode else ""


def _call(parent: int, function: Callable[..., None], *arguments: object) -> None:
    die_with(parent)
    limit_process()
    try:
        function(*arguments)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    finally:  # An error does not kill, and the shard will meet it. Threads that a filter has left would stay for ever.
        os._exit(0)
