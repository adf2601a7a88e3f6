"""Speed of this machine's processor: FLOP/s and bytes a second, measured in a third of one."""

import functools
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path

ASSUMED_FLOPS = 40e9
"""FLOP/s of one logical CPU where numpy is not installed: AVX2, 32 FLOP a cycle at 2.5 GHz, shared by the two threads of a core."""
ASSUMED_BANDWIDTH = 5e9
"""The same in bytes a second: two channels of DDR4-3200 over some ten threads."""
SIDE = 1_024
"""Rows and columns of the FP32 matrices that are multiplied: 2.1 GFLOP, 12 MiB."""
COPIED_BYTES = 64 * 1024**2
"""More than the caches hold."""
TRIES = 5
"""The best of them counts: what runs beside takes its share of the others."""


def num_cpus() -> int:
    """Logical CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, from the kernel."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return names[0] if names else os.uname().machine


@functools.cache
def cpu_speed() -> tuple[float, float]:
    """FP32 FLOP/s of matrix products, and bytes a second that a copy reads and writes, of all CPUs together."""
    if importlib.util.find_spec("numpy") is None:
        return num_cpus() * ASSUMED_FLOPS, num_cpus() * ASSUMED_BANDWIDTH
    import numpy as np

    left = np.ones((SIDE, SIDE), dtype=np.float32)
    product = np.empty_like(left)
    source = np.ones(COPIED_BYTES, dtype=np.uint8)
    copy = np.empty_like(source)
    flops = 2 * SIDE**3 / _best_s(lambda: np.matmul(left, left, out=product))
    bandwidth = 2 * COPIED_BYTES / _best_s(lambda: np.copyto(copy, source))
    return flops, bandwidth


def _best_s(work: Callable[[], object]) -> float:
    durations = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return min(durations)
