"""Whether a step fits a device: what lies beside the allocator, and how full a device may be."""

from typing import Literal

from anadil.core.format import GIB
from anadil.plan.instances import CPU, Machine
from anadil.plan.memory import Memory

OUTSIDE_BYTES = round(1.5 * GIB)
"""CUDA context (0.4-0.6 GiB), NCCL (0.3-1 GiB) and cuBLAS, which no allocator sees. Assumption."""
PROCESS_BYTES = round(0.6 * GIB)
"""Python, torch and transformers in a process on a CPU: 0.5 GiB measured, rounded up."""
FITS = 0.95
"""Share of the rest that may be filled; what is left is fragmentation (1-3 % with expandable segments)."""
TIGHT = 0.98

Verdict = Literal["fits", "tight", "no"]


def reserved(memory: Memory, machine: Machine) -> dict[str, int]:
    """What a device needs beside the allocated bytes of a step, by part."""
    if machine.device == CPU:
        return {"Python and libraries": PROCESS_BYTES}
    early = {"prefetched layer": memory.prefetched} if memory.prefetched else {}
    return {**early, "CUDA, NCCL, cuBLAS": OUTSIDE_BYTES}


def limit_bytes(machine: Machine, share: float = FITS) -> int:
    """Most bytes of a step, with what is reserved, that a device of the machine takes."""
    outside = PROCESS_BYTES if machine.device == CPU else OUTSIDE_BYTES
    return round(outside + share * max(0, machine.memory_bytes - outside))


def verdict(total_bytes: float, machine: Machine) -> Verdict:
    """Whether a step fits.

    Args:
        total_bytes: Allocated and reserved bytes.
        machine: Whose device it is.
    """
    if total_bytes <= limit_bytes(machine):
        return "fits"
    return "tight" if total_bytes <= limit_bytes(machine, TIGHT) else "no"
