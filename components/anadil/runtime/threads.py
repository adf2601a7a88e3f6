"""Number of threads and processes of a stage, and how threads wait: one rule for laptops, containers and pods."""

import multiprocessing
import os
from pathlib import Path

from anadil.core.errors import PreflightError

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait sleep. By default libgomp lets them spin at the end of each parallel part, for some milliseconds:
where anything else runs too, they spin away the time that the one which they wait for would need.
Measured: benchmarks/neighbours. Read when the library is loaded, that is with torch."""
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""File of a container's limit: microseconds of CPU time in each period. Source: Linux, Control Group v2."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108  where Linux keeps semaphores
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Whoever sets one of these has decided. Source: GCC, libgomp, Environment Variables; LLVM/OpenMP runtimes."""


def wait_asleep() -> None:
    """Set it for this process and those that it starts, before anything loads torch."""
    if not any(name in os.environ for name in OWN):
        os.environ.update(ASLEEP)


def num_cores() -> int:
    """Cores that this process may use, as its affinity and its container's limit say."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = CPU_LIMIT.read_text().partition(" ") if CPU_LIMIT.is_file() else ("max", "", "")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def check_shared_locks() -> None:
    """Make sure that processes can share locks, which Linux keeps in /dev/shm."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except (OSError, ImportError) as error:  # the latter where sem_open is missing altogether
        raise PreflightError(
            f"{SHARED_MEMORY}: processes can share no locks there ({getattr(error, 'strerror', None) or error}); as root: "
            f"mount -t tmpfs -o mode=1777 tmpfs {SHARED_MEMORY}; a container: let it have one that its user can write"
        ) from None
