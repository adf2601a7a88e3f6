"""Memory of a stage after pre-training, on the fewest devices that hold it."""

from collections.abc import Iterable
from dataclasses import dataclass

from anadil.core.format import human_bytes
from anadil.plan.instances import CPU, Machine
from anadil.plan.memory_limit import FIT_VERDICTS, FitVerdict, fit_verdict, outside_bytes

AFTER = ("finetune", "evaluate")
"""Stages that load the model which pre-training makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory that one stage needs, of each device and of a machine."""

    stage: str
    nodes: int
    devices: int
    """Devices of each node."""
    parts: dict[str, int]
    """Bytes of one device by part, with what no allocator sees."""
    host_bytes: int
    """Main memory of a node while the model is loaded or written."""
    device_bytes: int
    """Memory that one device has."""
    host_limit_bytes: int
    """Main memory that goes with so many devices of a node."""
    verdict: FitVerdict

    @property
    def total_bytes(self) -> int:
        """Bytes of one device."""
        return sum(self.parts.values())

    @property
    def where(self) -> str:
        """Text such as `4 devices`, or `2 nodes of 8 devices`."""
        each = "1 device" if self.devices == 1 else f"{self.devices} devices"
        return each if self.nodes == 1 else f"{self.nodes} nodes of {each}"

    def line(self) -> str:
        """One line of what it needs."""
        need, has = human_bytes(self.total_bytes), human_bytes(self.device_bytes)
        return f"{self.stage} needs {need} of {has} on {'each of ' * (self.where != '1 device')}{self.where} ({self.verdict})"


def stage_memory(
    stage: str, parts: dict[str, float], host_bytes: float, machine: Machine, *, nodes: int, devices: int
) -> StageMemory:
    """Memory of a stage on `devices` of each of `nodes` machines, with the verdict.

    A machine without GPUs has no memory but the main memory, which `parts` count.
    """
    counted = {name: round(value) for name, value in parts.items() if value >= 0.5} | outside_bytes(machine)
    # A pod gets the share of the main memory that its GPUs are of all of the machine's.
    limit = machine.ram_bytes * min(devices, machine.devices) // machine.devices
    verdict = fit_verdict(sum(counted.values()), machine)
    return StageMemory(
        stage=stage,
        nodes=nodes,
        devices=devices,
        parts=counted,
        host_bytes=round(host_bytes),
        device_bytes=machine.memory_bytes,
        host_limit_bytes=limit,
        verdict="no" if machine.device != CPU and host_bytes > limit else verdict,
    )


def fewest(options: Iterable[StageMemory]) -> StageMemory:
    """The first that fits; else the first that fits tightly; else the last, which needs least of a device."""
    listed = list(options)
    best = min(listed, key=lambda each: FIT_VERDICTS.index(each.verdict))
    return listed[-1] if best.verdict == "no" else best
