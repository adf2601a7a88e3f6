"""The nodes that could take a training job, with GPUs and EFA as it asks for them."""

from collections import Counter
from collections.abc import Iterator

from anadil.core.format import amount, counted
from anadil.launch.job import ApiObject, TrainingJob, labels
from anadil.launch.kubernetes.client import Api, Refused
from anadil.launch.kubernetes.manifests import DEEP_HEALTH, EFA, GPU, HEALTH, efa_interfaces, requirements
from anadil.recipe.cluster import Cluster, Toleration
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult, failed, passed, skipped

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
    schedulable = [node for node in nodes if not _why_not(node, cluster)]
    places = sum(_places(node, job) for node in schedulable)
    detail = f"{len(schedulable)} of {len(nodes)} nodes take such pods"
    if places < job.nodes:
        reasons = Counter(reason for node in nodes if (reason := _why_not(node, cluster)))
        summary = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        shared = f"; room for {places} pods in all" if places > len(schedulable) else ""
        detail += f", {job.nodes} needed{shared}{f' ({summary})' if summary else ''}"
        yield failed("nodes", detail, "add nodes, or correct cluster.node_selector, tolerations and nodes")
        return
    shares = len(schedulable) < job.nodes
    need = f"and have room for {job.nodes} that share them" if shares else f"{job.nodes} needed"
    yield passed("nodes", f"{detail}, {need}")
    yield from _check_devices(job, schedulable)


def _check_devices(job: TrainingJob, nodes: list[ApiObject]) -> Iterator[CheckResult]:
    if job.devices == 0:
        yield skipped("GPUs", "the recipe asks for none")
        return
    yield _resource("GPUs", GPU, job.devices, job.nodes, nodes, "run the NVIDIA device plugin on them")
    efa = efa_interfaces(job.machine, job.devices, job.nodes)
    if job.nodes == 1:
        yield skipped("EFA", "one node needs no network between nodes")
    elif not efa:
        instance = job.recipe.cluster.instance or "a machine type that is not named"
        yield skipped("EFA", f"pods of {instance} ask for none; they talk over TCP")
    else:
        remedy = "run the EFA device plugin and launch nodes with EFA interfaces; without it NCCL uses TCP"
        yield _resource("EFA", EFA, efa, job.nodes, nodes, remedy)


def share_one_node(api: Api, recipe: Recipe) -> bool:
    """Return whether one node takes all pods of a training job; false where nodes may not be read."""
    try:
        nodes = api.read("/api/v1/nodes").get("items") or []
    except Refused:
        return False
    job = TrainingJob(stage="pretrain", recipe=recipe, inputs={}, target="")
    schedulable = [node for node in nodes if not _why_not(node, recipe.cluster)]
    return len(schedulable) == 1 and _places(schedulable[0], job) >= job.nodes


def _resource(
    name: str, resource: str, each: int, num_nodes: int, nodes: list[ApiObject], remedy: str
) -> CheckResult:
    amounts = [int((node.get("status", {}).get("allocatable") or {}).get(resource, 0)) for node in nodes]
    enough = sum(amount >= each for amount in amounts)
    detail = f"{counted(enough, 'node')} with {each} or more {resource} allocatable, {num_nodes} needed"
    if sum(amount // each for amount in amounts) < num_nodes:
        return failed(name, f"{detail}; the most on a node is {max(amounts)}", remedy)
    if enough < num_nodes:
        detail = f"{counted(enough, 'node')} can hold {num_nodes} times {each} {resource} allocatable"
    return passed(name, detail)


def _health(nodes: list[ApiObject]) -> CheckResult:
    name = "node health"
    states = Counter(labels(node).get(HEALTH, "no label") for node in nodes)
    summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    checked = Counter(labels(node)[DEEP_HEALTH] for node in nodes if DEEP_HEALTH in labels(node))
    if checked:
        summary += f"; deep check {', '.join(f'{count} {state}' for state, count in sorted(checked.items()))}"
    if states[HEALTHY]:
        return passed(name, summary)
    remedy = f"kubectl get nodes -L {HEALTH}; jobs take only {HEALTHY} ones (or set cluster.hyperpod: false)"
    return failed(name, summary or "no nodes", remedy)


def _places(node: ApiObject, job: TrainingJob) -> int:
    """Return how many pods of a job a node has room for: those that ask for less than all of it share it."""
    asked = job.recipe.cluster.resources.get(job.stage)
    needs = requirements(job.machine, job.devices, job.nodes, asked, key=f"cluster.resources.{job.stage}")
    allocatable = node.get("status", {}).get("allocatable") or {}
    room = [
        int(amount(str(allocatable[name])) // amount(str(each)))
        for name, each in needs["requests"].items()
        if name in allocatable
    ]
    # At least one: another line says which resource is too little.
    return max(1, min(room, default=1))


def _why_not(node: ApiObject, cluster: Cluster) -> str:
    """Return why a node takes no training pod; empty where it does."""
    spec = node.get("spec", {})
    conditions = node.get("status", {}).get("conditions") or ()
    if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        return "not ready"
    if spec.get("unschedulable"):
        return "cordoned"
    if cluster.hyperpod and labels(node).get(HEALTH) != HEALTHY:
        return "not healthy"
    kind, instance = labels(node).get(TYPE_LABEL, ""), cluster.instance or ""
    if instance and kind.removeprefix("ml.") != instance.removeprefix("ml."):
        return f"of another type than {instance}"
    if any(labels(node).get(key) != value for key, value in cluster.node_selector.items()):
        return "without the labels of cluster.node_selector"
    for taint in spec.get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not _tolerates(taint, cluster.tolerations):
            return f"with the taint {taint['key']}"
    return ""


def _tolerates(taint: ApiObject, tolerations: tuple[Toleration, ...]) -> bool:
    return any(
        each.key == taint["key"]
        and each.effect in (None, taint["effect"])
        and (each.operator == "Exists" or each.value == taint.get("value"))
        for each in tolerations
    )
