"""Measured against predicted: what short runs on a device say about the plan's model of it.

Pure arithmetic. Nothing is applied where nothing was measured, nor to another device, nor to a
model of other sizes.
"""

import math
from collections.abc import Callable, Iterable, Mapping
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
    driver_name: str = ""
    """Name of the device in the driver."""
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
    reserved_bytes: int | None = None
    """Most that the allocator had taken from the device (CUDA); None on a CPU."""
    rss_rise_bytes: int | None = None
    """On a CPU: most resident memory of a process, less what it had before the model was made.
    Some 20 to 40 MiB more than tensors need, which the C library has not given back."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes to compare with the allocated ones of a prediction."""
        return self.rss_rise_bytes if self.allocated_bytes is None else self.allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted speed and memory of a run."""

    tokens_per_s_per_device: float
    allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One measurement beside its prediction."""

    measurement: Measurement
    prediction: Prediction
    speed_ratio: float
    """Measured over predicted tokens per second."""
    memory_difference_bytes: int | None
    """Measured less predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far predictions for a device were off."""

    device: str
    factor: float
    """Geometric mean of measured over predicted speed."""
    low: float
    """Least of these ratios."""
    high: float
    """Largest of these ratios."""
    compared: tuple[ComparedRun, ...]

    @property
    def measured(self) -> int:
        """Measurements behind the factor."""
        return len(self.compared)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {
                "layout": asdict(each.measurement.layout),
                "trains": each.measurement.work.trains,
                "tokens_per_s_per_device": each.measurement.tokens_per_s_per_device,
                "predicted_tokens_per_s_per_device": each.prediction.tokens_per_s_per_device,
                "memory_bytes": each.measurement.memory_bytes,
                "predicted_memory_bytes": each.prediction.allocated_bytes,
                "memory_difference_bytes": each.memory_difference_bytes,
            }
            for each in self.compared
        ]
        return {
            "device": self.device,
            "measured": self.measured,
            "factor": self.factor,
            "low": self.low,
            "high": self.high,
            "runs": rows,
        }


def device_of(machine: Machine) -> str:
    """Name of a machine's device in measurements; a CPU by its model, because CPUs differ."""
    if machine.device != CPU:
        return machine.device
    return f"{CPU}, {cpu_model()}, {machine.vcpus} logical"


def calibrate(
    measurements: Iterable[Measurement],
    predict: Callable[[Measurement], Prediction],
    *,
    device: str,
    shape: Shape,
) -> Calibration | None:
    """Calibration by measurements of this model on this device; None where there is none.

    Args:
        measurements: Of any device and model; those that do not match, or ran out of memory, are skipped.
        predict: What the plan says of one of them, uncorrected.
        device: See `Measurement.device`.
        shape: The model that is planned.
    """
    compared = tuple(
        _compared(each, predict(each), each.tokens_per_s_per_device)
        for each in measurements
        if each.status == "ok"
        and each.tokens_per_s_per_device
        and (each.device, each.shape) == (device, shape)
    )
    if not compared:
        return None
    ratios = [each.speed_ratio for each in compared]
    return Calibration(
        device=device,
        factor=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)),
        low=min(ratios),
        high=max(ratios),
        compared=compared,
    )


def _compared(measurement: Measurement, prediction: Prediction, tokens_per_s: float) -> ComparedRun:
    used = measurement.memory_bytes
    return ComparedRun(
        measurement=measurement,
        prediction=prediction,
        speed_ratio=tokens_per_s / prediction.tokens_per_s_per_device,
        memory_difference_bytes=None if used is None else used - prediction.allocated_bytes,
    )


def predicted(measurement: Measurement, machine: Machine) -> Prediction:
    """Prediction for a run on as many of these machines as its layout takes.

    Raises:
        RecipeError: The machine's speed is not known, or the layout does not fill whole machines.
    """
    layout, work = measurement.layout, measurement.work
    nodes = max(1, layout.devices // machine.devices)
    rate = speed(measurement.shape, layout, work, machine, nodes)
    return Prediction(
        tokens_per_s_per_device=rate.tokens_per_s_per_device,
        allocated_bytes=peak_memory(measurement.shape, layout, work).allocated,
    )
