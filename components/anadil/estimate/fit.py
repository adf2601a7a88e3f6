"""Verdict on the bytes of a step: the device's memory, less bytes that no allocator sees."""

from typing import Literal, get_args

from anadil.core.format import GIB
from anadil.estimate.instances import CPU, Machine
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import Memory, peak_memory
from anadil.estimate.model_shape import Shape

OUTSIDE_BYTES = round(1.5 * GIB)
"""CUDA context (0.4-0.6 GiB), NCCL (0.3-1 GiB) and cuBLAS, which no allocator sees. Assumption."""
PROCESS_BYTES = round(0.75 * GIB)
"""Python, torch and transformers in a process on a CPU. Measured: 0.70 GiB beside `tiny`, 0.89 beside 135M parameters."""
FITS = 0.95
"""Share of the rest that may be filled; what is left is fragmentation (1-3 % with expandable segments)."""
TIGHT = 0.98
FitVerdict = Literal["fits", "tight", "no"]
FIT_VERDICTS: tuple[FitVerdict, ...] = get_args(FitVerdict)
"""From the best to the worst."""


def outside_bytes(machine: Machine) -> dict[str, int]:
    """Bytes of a device that no allocator sees, by part."""
    if machine.device == CPU:
        return {"Python and libraries": PROCESS_BYTES}
    return {"CUDA, NCCL, cuBLAS": OUTSIDE_BYTES}


def reserved(memory: Memory, machine: Machine) -> dict[str, int]:
    """Bytes that a device needs beside the allocated ones of a step, by part."""
    if machine.device == CPU:
        # A checkpoint is copied before it is written, and the copy's memory stays for the next one.
        copy = memory.parts["weights"] + memory.parts.get("optimizer", 0)
        return {"copy for checkpoints": copy} | outside_bytes(machine)
    early = {"prefetched layer": memory.prefetched} if memory.prefetched else {}
    return early | outside_bytes(machine)


def limit_bytes(machine: Machine, share: float = FITS) -> int:
    """Most bytes of a step, with what is reserved, that a device of the machine takes."""
    outside = sum(outside_bytes(machine).values())
    return round(outside + share * max(0, machine.memory_bytes - outside))


def fit_verdict(total_bytes: float, machine: Machine) -> FitVerdict:
    """Verdict on the allocated and reserved bytes of a device of the machine."""
    if total_bytes <= limit_bytes(machine):
        return "fits"
    return "tight" if total_bytes <= limit_bytes(machine, TIGHT) else "no"


def layout_fit(shape: Shape, layout: Layout, work: Work, machine: Machine) -> tuple[int, FitVerdict]:
    """Bytes of a layout on its worst device, and whether they fit."""
    memory = peak_memory(shape, layout, work)
    total = memory.allocated + sum(reserved(memory, machine).values())
    return total, fit_verdict(total, machine)
