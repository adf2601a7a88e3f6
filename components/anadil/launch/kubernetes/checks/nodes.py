"""Healthy nodes with the devices that the recipe's training asks for."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from anadil.core.format import amount, counted
from anadil.launch.job import TrainingJob
from anadil.launch.kubernetes.api.client import Api, Refused
from anadil.launch.manifests.pod import DEEP_HEALTH, HEALTH
from anadil.launch.manifests.resources import EFA, GPU, efa_interfaces, requirements
from anadil.preflight.check import CheckResult, failed, passed, skipped
from anadil.recipe.cluster import Cluster, Toleration
from anadil.recipe.sections import Recipe

HEALTHY = "Schedulable"
TYPE_LABEL = "node.kubernetes.io/instance-type"


def check_nodes(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Count the nodes that a training job could take, with GPUs and EFA as it asks for them."""
    cluster = recipe.cluster
    if cluster.backend == "sagemaker":
        yield skipped("nodes", "SageMaker trains on machines of its own")
        return
    nodes = api.read("/api/v1/nodes").get("items") or []
    if cluster.hyperpod:
        yield _health(nodes)
    job = TrainingJob(stage="pretrain", recipe=recipe, inputs={}, target="")
    schedulable = [node for node in nodes if _takes_jobs(node, cluster)]
    places = sum(_places(node, job) for node in schedulable)
    if places < job.nodes:
        reasons = Counter(_why_not(node, cluster) for node in nodes if not _takes_jobs(node, cluster))
        summary = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        shared = f"; room for {places} pods in all" if places > len(schedulable) else ""
        detail = (
            f"{len(schedulable)} of {len(nodes)} nodes take such pods, {job.nodes} needed{shared}"
            f"{f' ({summary})' if summary else ''}"
        )
        remedy = "add nodes, or correct cluster.node_selector, tolerations and nodes"
        yield failed("nodes", detail, remedy)
        return
    detail = f"{len(schedulable)} of {len(nodes)} nodes take such pods, {job.nodes} needed"
    if len(schedulable) < job.nodes:
        detail = f"{len(schedulable)} of {len(nodes)} nodes take such pods, and have room for {job.nodes} that share them"
    yield passed("nodes", detail)
    devices = job.devices
    if devices == 0:
        yield skipped("GPUs", "the recipe asks for none")
        return
    yield _resource("GPUs", GPU, devices, job.nodes, schedulable, "run the NVIDIA device plugin on them")
    efa = efa_interfaces(job.machine, devices, job.nodes)
    if job.nodes == 1:
        yield skipped("EFA", "one node needs no network between nodes")
    elif not efa:
        detail = f"pods of {cluster.instance or 'a machine type that is not named'} ask for none; they talk over TCP"
        yield skipped("EFA", detail)
    else:
        remedy = "run the EFA device plugin and launch nodes with EFA interfaces; without it NCCL uses TCP"
        yield _resource("EFA", EFA, efa, job.nodes, schedulable, remedy)


def share_one_node(api: Api, recipe: Recipe) -> bool:
    """True if all pods of a training job run on the one node that takes them; false where nodes may not be read."""
    try:
        nodes = api.read("/api/v1/nodes").get("items") or []
    except Refused:
        return False
    job = TrainingJob(stage="pretrain", recipe=recipe, inputs={}, target="")
    schedulable = [node for node in nodes if _takes_jobs(node, recipe.cluster)]
    return len(schedulable) == 1 and _places(schedulable[0], job) >= job.nodes


def _resource(
    name: str, resource: str, each: int, num_nodes: int, nodes: list[dict[str, Any]], remedy: str
) -> CheckResult:
    amounts = [int((node.get("status", {}).get("allocatable") or {}).get(resource, 0)) for node in nodes]
    enough = sum(amount >= each for amount in amounts)
    detail = f"{counted(enough, 'node')} with {each} or more {resource} allocatable, {num_nodes} needed"
    if sum(amount // each for amount in amounts) >= num_nodes:
        if enough < num_nodes:
            detail = f"{counted(enough, 'node')} can hold {num_nodes} times {each} {resource} allocatable"
        return passed(name, detail)
    most = f"; the most on a node is {max(amounts)}"
    return failed(name, detail + most, remedy)


def _health(nodes: list[dict[str, Any]]) -> CheckResult:
    name = "node health"
    states = Counter(_labels(node).get(HEALTH, "no label") for node in nodes)
    summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    checked = Counter(_labels(node)[DEEP_HEALTH] for node in nodes if DEEP_HEALTH in _labels(node))
    if checked:
        summary += f"; deep check {', '.join(f'{count} {state}' for state, count in sorted(checked.items()))}"
    if states[HEALTHY]:
        return passed(name, summary)
    remedy = f"kubectl get nodes -L {HEALTH}; jobs take only {HEALTHY} ones (or set cluster.hyperpod: false)"
    return failed(name, summary or "no nodes", remedy)


def _places(node: dict[str, Any], job: TrainingJob) -> int:
    """Pods of a job that a node has room for: those that ask for less than all of it share it."""
    asked = job.recipe.cluster.resources.get(job.stage)
    needs = requirements(job.machine, job.devices, job.nodes, asked, key=f"cluster.resources.{job.stage}")
    allocatable = node.get("status", {}).get("allocatable") or {}
    room = [
        int(amount(str(allocatable[name])) // amount(str(each)))
        for name, each in needs["requests"].items()
        if name in allocatable
    ]
    # At least one: what is too little is said where it is named.
    return max(1, min(room, default=1))


def _takes_jobs(node: dict[str, Any], cluster: Cluster) -> bool:
    return not _why_not(node, cluster)


def _why_not(node: dict[str, Any], cluster: Cluster) -> str:
    """Why a node takes no training pod; empty where it does."""
    spec = node.get("spec", {})
    conditions = node.get("status", {}).get("conditions") or ()
    if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        return "not ready"
    if spec.get("unschedulable"):
        return "cordoned"
    labels = _labels(node)
    if cluster.hyperpod and labels.get(HEALTH) != HEALTHY:
        return "not healthy"
    if cluster.instance and labels.get(TYPE_LABEL, "").removeprefix("ml.") != cluster.instance.removeprefix(
        "ml."
    ):
        return f"of another type than {cluster.instance}"
    if any(labels.get(key) != value for key, value in cluster.node_selector.items()):
        return "without the labels of cluster.node_selector"
    for taint in spec.get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not _borne(taint, cluster.tolerations):
            return f"with the taint {taint['key']}"
    return ""


def _labels(node: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    return labels


def _borne(taint: dict[str, Any], tolerations: tuple[Toleration, ...]) -> bool:
    return any(
        each.key == taint["key"]
        and each.effect in (None, taint["effect"])
        and (each.operator == "Exists" or each.value == taint.get("value"))
        for each in tolerations
    )
