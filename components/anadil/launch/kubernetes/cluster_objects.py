"""Checks of the objects that a recipe names or needs: queue, claims, ServiceAccount, Secrets, nodes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from anadil.core.format import amount, counted
from anadil.launch.job import ApiObject, TrainingJob, annotations, labels
from anadil.launch.kubernetes.client import Api, Refused
from anadil.launch.manifests.pod import DEEP_HEALTH, EFA, GPU, HEALTH, efa_interfaces, requirements
from anadil.preflight.check import CheckResult, failed, passed, skipped
from anadil.recipe.cluster import Cluster, Toleration, Volume
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import CHANNELS

KUEUE = "kueue.x-k8s.io"
# IAM role of a ServiceAccount. Source: Amazon EKS, IAM roles for service accounts.
ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Driver whose volumes cannot be renamed or appended to. Source: awslabs/mountpoint-s3, SEMANTICS.md.
MOUNTPOINT = "s3.csi.aws.com"
HEALTHY = "Schedulable"
TYPE_LABEL = "node.kubernetes.io/instance-type"


def check_queue(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Look for the LocalQueue, which must take jobs, and for the priority class."""
    cluster = recipe.cluster
    group = api.find(f"/apis/{KUEUE}")
    path = f"/apis/{group['preferredVersion']['groupVersion']}" if group else ""
    queues = f"{path}/namespaces/{api.namespace}/localqueues"
    if cluster.queue is None:
        if names := _names(api.read(queues)) if group else []:
            detail = f"cluster.queue is not set, though {api.namespace} has {', '.join(names)}"
            yield skipped("queue", detail, f"set cluster.queue: {names[0]}, if jobs here must queue")
        else:
            yield skipped("queue", "cluster.queue is not set")
        return
    if group is None:
        remedy = "install Kueue (HyperPod: the add-on amazon-sagemaker-hyperpod-taskgovernance), or leave cluster.queue out"
        yield failed("queue", f"{KUEUE} is not served", remedy)
        return
    answer = api.find(f"{queues}/{cluster.queue}")
    if answer is None:
        names = _names(api.read(queues))
        remedy = (
            f"set cluster.queue to one of {', '.join(names)}"
            if names
            else "create it, or leave cluster.queue out"
        )
        yield failed("queue", f"{api.namespace} has no LocalQueue {cluster.queue}", remedy)
        return
    status = answer.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    active: dict[str, Any] = conditions.get("Active", {})
    if active.get("status") != "True":
        reason = active.get("message") or active.get("reason") or "Kueue has not checked it yet"
        remedy = f"see kubectl -n {api.namespace} describe localqueue {cluster.queue}"
        yield failed("queue", f"{cluster.queue} is not active: {reason}", remedy)
        return
    num_pending = counted(status.get("pendingWorkloads", 0), "job")
    yield passed("queue", f"{cluster.queue} is active, {num_pending} waiting in it")
    if cluster.priority and api.find(f"{path}/workloadpriorityclasses/{cluster.priority}") is None:
        names = _names(api.read(f"{path}/workloadpriorityclasses"))
        remedy = (
            f"set cluster.priority to one of {', '.join(names)}" if names else "leave cluster.priority out"
        )
        yield failed("priority", f"there is no WorkloadPriorityClass {cluster.priority}", remedy)


def _names(answer: dict[str, Any]) -> list[str]:
    return sorted(str(each["metadata"]["name"]) for each in answer.get("items") or ())


def check_volumes(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Check that each claim is bound to a volume that all nodes can mount and checkpoints can live on."""
    if not recipe.cluster.volumes:
        yield skipped("volumes", "cluster.volumes names no claim")
    for volume in recipe.cluster.volumes:
        yield _claim(api, recipe, volume)


def _claim(api: Api, recipe: Recipe, volume: Volume) -> CheckResult:
    cluster = recipe.cluster
    name = f"claim {volume.claim}"
    answer = api.find(api.core_path("persistentvolumeclaims", volume.claim))
    if answer is None:
        remedy = "create it (manifests/ and the chart do), or correct cluster.volumes"
        return failed(name, f"{api.namespace} has no such claim", remedy)
    modes = set(answer["spec"].get("accessModes") or ())
    shared = {"ReadWriteMany"} | ({"ReadOnlyMany"} if volume.read_only else set())
    # All pods of a node may use a volume that the node mounts.
    on_one = "ReadWriteOnce" in modes and cluster.nodes > 1 and share_one_node(api, recipe)
    if cluster.nodes > 1 and not modes & shared and not on_one:
        detail = f"{', '.join(sorted(modes))}, but {cluster.nodes} nodes mount it"
        return failed(name, detail, f"make the claim {' or '.join(sorted(shared))} (FSx for Lustre, EFS)")
    phase = answer.get("status", {}).get("phase", "Pending")
    if phase != "Bound":
        return _unbound(api, name, answer, phase)
    if volume.holds(cluster.work or "") and _driver(api, answer["spec"].get("volumeName", "")) == MOUNTPOINT:
        detail = "Mountpoint for S3 cannot rename or append, so no checkpoint can be written there"
        return failed(name, detail, "put cluster.work on FSx for Lustre, EFS or EBS")
    size = (answer["status"].get("capacity") or {}).get("storage", "")
    return passed(name, f"bound, {size} {', '.join(sorted(modes))}, mounted at {volume.path}")


def _driver(api: Api, volume_name: str) -> str:
    """Return the CSI driver of a volume; empty where it may not be read."""
    try:
        volume = api.find(f"/api/v1/persistentvolumes/{volume_name}") if volume_name else None
    except Refused:
        return ""
    return str((volume or {}).get("spec", {}).get("csi", {}).get("driver", ""))


def _unbound(api: Api, name: str, claim: dict[str, Any], phase: str) -> CheckResult:
    asked, described = claim["spec"].get("storageClassName"), f"describe pvc {claim['metadata']['name']}"
    try:
        classes = api.read("/apis/storage.k8s.io/v1/storageclasses").get("items") or []
    except Refused:
        return failed(name, phase, f"see kubectl -n {claim['metadata'].get('namespace')} {described}")
    if asked is None:
        chosen = [each for each in classes if annotations(each).get(DEFAULT_CLASS) == "true"]
        lack = "it names no storage class, and no class is the default"
    else:
        chosen = [each for each in classes if each["metadata"]["name"] == asked]
        lack = f"there is no storage class {asked}"
    if claim["spec"].get("volumeName"):
        remedy = f"see kubectl describe pv {claim['spec']['volumeName']}: class, size and modes must agree"
        return failed(name, f"{phase}: waits for its volume", remedy)
    if not chosen:
        names = ", ".join(_names({"items": classes})) or "none"
        remedy = f"name one of the classes that are here ({names}), or create a PersistentVolume for it"
        return failed(name, f"{phase}: {lack}", remedy)
    if chosen[0].get("volumeBindingMode") == "WaitForFirstConsumer":
        return passed(name, f"{phase}: bound as soon as a pod mounts it")
    detail = f"{phase}: class {chosen[0]['metadata']['name']} has made no volume yet"
    return failed(name, detail, f"see kubectl {described}")


def check_service_account(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Look for the ServiceAccount of jobs, and for the AWS role that it takes."""
    account = recipe.cluster.service_account or "default"
    answer = api.find(api.core_path("serviceaccounts", account))
    if answer is None:
        create = f"kubectl -n {api.namespace} create serviceaccount {account}"
        remedy = f"{create}, or correct cluster.service_account"
        yield failed("service account", f"{api.namespace} has no {account}", remedy)
        return
    role = annotations(answer).get(ROLE_ANNOTATION)
    if role:
        yield passed("service account", f"{account} takes {role} (IRSA)")
    elif (recipe.storage.root or "").startswith("s3://"):
        detail = (
            f"{account} names no AWS role: Pod Identity, Secrets or the node's role must give access to S3"
        )
        remedy = f"annotate it with {ROLE_ANNOTATION}, or make a Pod Identity association"
        yield passed("service account", detail, remedy)
    else:
        yield passed("service account", account)


def check_secrets(api: Api, recipe: Recipe) -> Iterator[CheckResult]:
    """Look for the keys of each Secret; values are never read."""
    cluster = recipe.cluster
    if not cluster.secrets and not cluster.notifications:
        yield skipped("secrets", "the recipe names none")
    for secret, keys in cluster.secrets.items():
        yield _secret(api, secret, set(keys), every=True)
    if cluster.notifications:
        yield _secret(api, cluster.notifications, {channel.variable for channel in CHANNELS}, every=False)


def _secret(api: Api, secret: str, keys: set[str], *, every: bool) -> CheckResult:
    name = f"secret {secret}"
    try:
        answer = api.find(api.core_path("secrets", secret))
    except Refused as error:
        if error.answer.status != 403:
            raise
        remedy = f"ask somebody who may: kubectl -n {api.namespace} describe secret {secret}"
        return skipped(name, "may not be read with your rights", remedy)
    if answer is None:
        example = " ".join(f"--from-literal={key}=..." for key in sorted(keys))
        remedy = f"kubectl -n {api.namespace} create secret generic {secret} {example}"
        return failed(name, f"{api.namespace} has none of this name", remedy)
    missing = keys - set(answer.get("data") or ())
    if missing and (every or missing == keys):
        which = ", ".join(sorted(missing))
        return failed(
            name, f"lacks {which if every else f'one of {which}'}", "add what it lacks to the Secret"
        )
    return passed(name, f"holds {', '.join(sorted(keys - missing))}")


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
