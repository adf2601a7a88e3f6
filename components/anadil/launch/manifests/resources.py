"""Resources of a pod: as much as its node can give; a pod that asks for more waits forever."""

import logging
from typing import Any

from anadil.core.errors import RecipeError
from anadil.core.format import GIB, amount
from anadil.plan.instances import CPU, Machine
from anadil.recipe.cluster import Resources

log = logging.getLogger(__name__)

GPU = "nvidia.com/gpu"
# Network interface of AWS that NCCL needs between machines; not asked for, NCCL takes TCP and says nothing.
EFA = "vpc.amazonaws.com/efa"
CPU_TIERS = ((1, 0.30), (1, 0.15), (2, 0.10), (float("inf"), 0.06))
MEMORY_TIERS = ((4, 0.30), (4, 0.25), (8, 0.20), (112, 0.17), (float("inf"), 0.07))
# Reserve of a node: cores or GiB, the share of them, and a constant; more than EKS keeps.
# Source: aws/sagemaker-hyperpod-cli, training/quota_allocation_util.py (commit 011ca92).
CPU_OVERHEAD, MEMORY_OVERHEAD = 0.1, 0.5
CPU_JOB_REQUESTS = {"cpu": "500m", "memory": "2Gi"}
# Memory of a job without GPUs: fits a small node next to others. Assumption: a tiny model, as in the recipe `smoke`.
CPU_JOB_MEMORY_LIMIT = "4Gi"
# CPUs and memory per GPU if the recipe names no machine: one process and the libraries of CUDA. Assumption.
CPUS_PER_GPU, GIB_PER_GPU = 4, 16


def requirements(
    machine: Machine | None, devices: int, nodes: int, asked: Resources | None = None, *, key: str = ""
) -> dict[str, Any]:
    """Return `resources` of the training container.

    Args:
        machine: Type of the node; None where the recipe names none.
        devices: GPUs of the pod.
        nodes: Pods that train together.
        asked: The recipe's own amounts, by its `key`; they go before the defaults.
        key: For messages.
    """
    if machine and asked:
        _refuse_too_much(machine, asked, key)
    whole: dict[str, str] = {}
    if devices:
        whole[GPU] = str(devices)
    if efa := efa_interfaces(machine, devices, nodes):
        whole[EFA] = str(efa)
    requests, memory_limit = _cpu_and_memory(machine, devices)
    if asked and asked.cpu:
        requests["cpu"] = asked.cpu
    if asked and asked.memory:
        requests["memory"] = memory_limit = asked.memory
    # No limit on CPUs: a process that is throttled holds up all the others.
    return {"requests": {**requests, **whole}, "limits": {"memory": memory_limit, **whole}}


def efa_interfaces(machine: Machine | None, devices: int, nodes: int) -> int:
    """Return the EFA interfaces of each pod: all of the node where several nodes train with all their GPUs."""
    if machine is None or nodes == 1 or not devices:
        return 0
    if machine.efa is None:
        log.warning("%s: how many EFA interfaces it has is not known; its jobs talk over TCP", machine.name)
        return 0
    if devices < machine.devices and machine.efa:
        log.warning(
            "%s of %s GPUs of a %s: a pod that shares its node gets no EFA, so the job talks over TCP",
            devices, machine.devices, machine.name,
        )  # fmt: skip
        return 0
    return machine.efa


def most_for_pods(machine: Machine) -> tuple[int, int]:
    """Return CPUs and GiB of memory that a node of this type leaves to pods."""
    cpus = machine.vcpus - CPU_OVERHEAD - _reserved(machine.vcpus, CPU_TIERS)
    gib = machine.ram_bytes / GIB
    return int(cpus), int(gib - MEMORY_OVERHEAD - _reserved(gib, MEMORY_TIERS))


def _reserved(total: float, tiers: tuple[tuple[float, float], ...]) -> float:
    reserved, left = 0.0, total
    for size, share in tiers:
        reserved += min(size, left) * share
        left = max(0.0, left - size)
    return reserved


def _cpu_and_memory(machine: Machine | None, devices: int) -> tuple[dict[str, str], str]:
    """Return requests and the limit of memory: the same share of the node as that of its GPUs."""
    if not devices:
        return dict(CPU_JOB_REQUESTS), CPU_JOB_MEMORY_LIMIT
    if machine is None or machine.device == CPU:
        cpus, gib = CPUS_PER_GPU * devices, GIB_PER_GPU * devices
    else:
        cpus, gib = (max(1, most * devices // machine.devices) for most in most_for_pods(machine))
    return {"cpu": str(cpus), "memory": f"{gib}Gi"}, f"{gib}Gi"


def _refuse_too_much(machine: Machine, asked: Resources, key: str) -> None:
    gpus = 0 if machine.device == CPU else machine.devices
    if asked.gpus and asked.gpus > gpus:
        raise RecipeError(f"{key}.gpus: {asked.gpus}, but a {machine.name} has {gpus}; ask for fewer")
    for name, text, most in (
        ("cpu", asked.cpu, float(machine.vcpus)),
        ("memory", asked.memory, float(machine.ram_bytes)),
    ):
        if text and amount(text) >= most:
            cpus, gib = most_for_pods(machine)
            raise RecipeError(
                f"{key}.{name}: {text}, but a {machine.name} leaves about {cpus} CPUs and {gib}Gi to pods; "
                "the job would wait forever; ask for less"
            )
