"""CPUs of a process, and how its threads wait for each other: one rule for laptops, containers and pods."""

import os

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait sleep. By default libgomp lets them spin at the end of each parallel part, for some milliseconds:
where anything else runs too, they spin away the time that the one which they wait for would need.
Measured: benchmarks/neighbours. Read when the library is loaded, that is with torch."""
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Whoever sets one of these has decided. Source: GCC, libgomp, Environment Variables; LLVM/OpenMP runtimes."""


def wait_asleep() -> None:
    """Set it for this process and those that it starts, before anything loads torch."""
    if not any(name in os.environ for name in OWN):
        os.environ.update(ASLEEP)


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
