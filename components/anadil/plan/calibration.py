"""Correction of predicted speeds by short runs on such a device.

It is applied to the measured device and model alone.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from anadil.plan.cpu_speed import cpu_model
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import peak_memory
from anadil.plan.model_shape import Shape
from anadil.plan.speed import speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A short run of the real training step; what it has not measured is None."""

    status: Literal["ok", "out of memory"]
    device: str
    """Name of the device in the plan, such as `H100`; see `device_of`."""
    shape: Shape
    layout: Layout
    work: Work
    versions: Mapping[str, str]
    """Package -> version, of what decides speed and memory."""
    steps: int = 0
    """Optimizer steps that were timed, after those that warm up."""
    step_s: float | None = None
    """Median of the timed steps, on the slowest process."""
    spread: float | None = None
    """Slowest over fastest of the timed steps; far above 1 something else ran on the machine."""
    tokens_per_s_per_device: float | None = None
    """Positions of sequences, padding included, as predictions count them."""
    allocated_bytes: int | None = None
    """Most that a process's allocator held (CUDA); None on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Ratio of measured to predicted speed on a device."""

    device: str
    factor: float
    """Geometric mean of measured over predicted speed."""
    low: float
    """Least of these ratios."""
    high: float
    """Largest of these ratios."""
    runs: tuple[dict[str, Any], ...]
    """Each measured run beside its prediction, for JSON."""

    def as_dict(self) -> dict[str, Any]:
        """The calibration for JSON."""
        return {
            "device": self.device, "measured": len(self.runs), "factor": self.factor,
            "low": self.low, "high": self.high, "runs": list(self.runs),
        }  # fmt: skip


def device_of(machine: Machine) -> str:
    """Name of a machine's device in measurements; a CPU by its model, because CPUs differ."""
    if machine.device != CPU:
        return machine.device
    return f"{CPU}, {cpu_model()}, {machine.vcpus} logical"


def calibrate(measurements: Iterable[Measurement], machine: Machine, shape: Shape) -> Calibration | None:
    """Calibration by measurements of this model on this kind of device; None where there is none.

    Args:
        measurements: Of any device and model; those that do not match, or ran out of memory, are skipped.
        machine: Each run is predicted on as many of these as its layout takes.
        shape: The model that is planned.
    """
    device, ratios, runs = device_of(machine), [], []
    for each in measurements:
        rate = each.tokens_per_s_per_device
        if each.status != "ok" or not rate or (each.device, each.shape) != (device, shape):
            continue
        nodes = max(1, each.layout.devices // machine.devices)
        predicted = speed(shape, each.layout, each.work, machine, nodes).tokens_per_s_per_device
        memory, used = peak_memory(shape, each.layout, each.work).allocated, each.allocated_bytes
        ratios.append(rate / predicted)
        row = {
            "layout": asdict(each.layout), "trains": each.work.trains,
            "tokens_per_s_per_device": rate, "predicted_tokens_per_s_per_device": predicted,
            "memory_bytes": used, "predicted_memory_bytes": memory,
            "memory_difference_bytes": None if used is None else used - memory,
        }  # fmt: skip
        runs.append(row)
    if not runs:
        return None
    factor = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return Calibration(device=device, factor=factor, low=min(ratios), high=max(ratios), runs=tuple(runs))
