"""What a recipe names in the job namespace: queue, claims, ServiceAccount, Secrets."""

from collections.abc import Iterator
from typing import Any

from anadil.cli.doctor.client import Api, Refused, below
from anadil.cli.doctor.local import Check
from anadil.cli.doctor.nodes import share_one_node
from anadil.recipe.cluster import Cluster, Volume
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import CHANNELS

KUEUE = "kueue.x-k8s.io"
ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
"""IAM role of a ServiceAccount. Source: Amazon EKS, IAM roles for service accounts."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
MOUNTPOINT = "s3.csi.aws.com"
"""Driver whose volumes cannot be renamed or appended to. Source: awslabs/mountpoint-s3, SEMANTICS.md."""


def check_queue(api: Api, cluster: Cluster, namespace: str) -> Iterator[Check]:
    """Whether the LocalQueue is there and takes jobs, and the priority class exists."""
    group = api.find(f"/apis/{KUEUE}")
    if cluster.queue is None:
        yield from _queue_not_named(api, group, namespace)
        return
    if group is None:
        remedy = "install Kueue (HyperPod: the add-on amazon-sagemaker-hyperpod-taskgovernance), or leave cluster.queue out"
        yield Check(name="queue", status="failed", detail=f"{KUEUE} is not served", remedy=remedy)
        return
    path = _kueue_path(group)
    found = api.find(f"{path}/namespaces/{namespace}/localqueues/{cluster.queue}")
    if found is None:
        there = _names(api.get(f"{path}/namespaces/{namespace}/localqueues"))
        remedy = (
            f"set cluster.queue to one of {', '.join(there)}"
            if there
            else "create it, or leave cluster.queue out"
        )
        detail = f"{namespace} has no LocalQueue {cluster.queue}"
        yield Check(name="queue", status="failed", detail=detail, remedy=remedy)
        return
    status = found.get("status") or {}
    active: dict[str, Any] = next(
        (each for each in status.get("conditions") or () if each["type"] == "Active"), {}
    )
    if active.get("status") != "True":
        reason = active.get("message") or active.get("reason") or "Kueue has not looked at it yet"
        remedy = f"see kubectl -n {namespace} describe localqueue {cluster.queue}"
        detail = f"{cluster.queue} is not active: {reason}"
        yield Check(name="queue", status="failed", detail=detail, remedy=remedy)
        return
    waiting = status.get("pendingWorkloads", 0)
    detail = f"{cluster.queue} is active, {waiting} job(s) wait in it"
    yield Check(name="queue", status="passed", detail=detail)
    if cluster.priority and api.find(f"{path}/workloadpriorityclasses/{cluster.priority}") is None:
        there = _names(api.get(f"{path}/workloadpriorityclasses"))
        remedy = (
            f"set cluster.priority to one of {', '.join(there)}" if there else "leave cluster.priority out"
        )
        detail = f"there is no WorkloadPriorityClass {cluster.priority}"
        yield Check(name="priority", status="failed", detail=detail, remedy=remedy)


def _queue_not_named(api: Api, group: dict[str, Any] | None, namespace: str) -> Iterator[Check]:
    there = _names(api.get(f"{_kueue_path(group)}/namespaces/{namespace}/localqueues")) if group else []
    if there:
        remedy = f"set cluster.queue: {there[0]}, if jobs here must queue"
        detail = f"cluster.queue is not set, though {namespace} has {', '.join(there)}"
        yield Check(name="queue", status="skipped", detail=detail, remedy=remedy)
    else:
        yield Check(name="queue", status="skipped", detail="cluster.queue is not set")


def _kueue_path(group: dict[str, Any]) -> str:
    return f"/apis/{group['preferredVersion']['groupVersion']}"


def _names(answer: dict[str, Any]) -> list[str]:
    return sorted(str(each["metadata"]["name"]) for each in answer.get("items") or ())


def check_volumes(api: Api, recipe: Recipe, namespace: str) -> Iterator[Check]:
    """Whether each claim is bound, to a volume that all nodes can mount and checkpoints can live on."""
    cluster = recipe.cluster
    if not cluster.volumes:
        yield Check(name="volumes", status="skipped", detail="cluster.volumes names no claim")
    for volume in cluster.volumes:
        yield _claim(api, recipe, namespace, volume)


def _claim(api: Api, recipe: Recipe, namespace: str, volume: Volume) -> Check:
    cluster = recipe.cluster
    name = f"claim {volume.claim}"
    found = api.find(below(namespace, "persistentvolumeclaims", volume.claim))
    if found is None:
        remedy = "create it (manifests/ and the chart do), or correct cluster.volumes"
        return Check(name=name, status="failed", detail=f"{namespace} has no such claim", remedy=remedy)
    modes = set(found["spec"].get("accessModes") or ())
    shared = {"ReadWriteMany"} | ({"ReadOnlyMany"} if volume.read_only else set())
    # What one node mounts, all pods on it may use.
    on_one = "ReadWriteOnce" in modes and cluster.nodes > 1 and share_one_node(api, recipe)
    if cluster.nodes > 1 and not modes & shared and not on_one:
        wanted = " or ".join(sorted(shared))
        detail = f"{', '.join(sorted(modes))}, but {cluster.nodes} nodes mount it"
        remedy = f"make the claim {wanted} (FSx for Lustre, EFS)"
        return Check(name=name, status="failed", detail=detail, remedy=remedy)
    phase = found.get("status", {}).get("phase", "Pending")
    if phase != "Bound":
        return _unbound(api, name, found, phase)
    size = (found["status"].get("capacity") or {}).get("storage", "")
    if _holds_work(cluster, volume) and _driver(api, found["spec"].get("volumeName", "")) == MOUNTPOINT:
        detail = "Mountpoint for S3 cannot rename or append, so no checkpoint can be written there"
        remedy = "put cluster.work on FSx for Lustre, EFS or EBS"
        return Check(name=name, status="failed", detail=detail, remedy=remedy)
    detail = f"bound, {size} {', '.join(sorted(modes))}, mounted at {volume.path}"
    return Check(name=name, status="passed", detail=detail)


def _holds_work(cluster: Cluster, volume: Volume) -> bool:
    work = cluster.work or ""
    return work == volume.path or work.startswith(f"{volume.path}/")


def _driver(api: Api, volume_name: str) -> str:
    """CSI driver of a volume; empty where it may not be read."""
    try:
        volume = api.find(f"/api/v1/persistentvolumes/{volume_name}") if volume_name else None
    except Refused:
        return ""
    return str((volume or {}).get("spec", {}).get("csi", {}).get("driver", ""))


def _unbound(api: Api, name: str, claim: dict[str, Any], phase: str) -> Check:
    wanted = claim["spec"].get("storageClassName")
    try:
        classes = api.get("/apis/storage.k8s.io/v1/storageclasses").get("items") or []
    except Refused:
        remedy = (
            f"see kubectl -n {claim['metadata'].get('namespace')} describe pvc {claim['metadata']['name']}"
        )
        return Check(name=name, status="failed", detail=phase, remedy=remedy)
    if wanted is None:
        chosen = [each for each in classes if _is_default(each)]
        lack = "it names no storage class, and no class is the default"
    else:
        chosen = [each for each in classes if each["metadata"]["name"] == wanted]
        lack = f"there is no storage class {wanted}"
    if claim["spec"].get("volumeName"):
        remedy = f"see kubectl describe pv {claim['spec']['volumeName']}: class, size and modes must agree"
        return Check(name=name, status="failed", detail=f"{phase}: waits for its volume", remedy=remedy)
    if not chosen:
        there = ", ".join(_names({"items": classes})) or "none"
        remedy = f"name one of the classes that are here ({there}), or create a PersistentVolume for it"
        return Check(name=name, status="failed", detail=f"{phase}: {lack}", remedy=remedy)
    if chosen[0].get("volumeBindingMode") == "WaitForFirstConsumer":
        return Check(name=name, status="passed", detail=f"{phase}: bound as soon as a pod mounts it")
    remedy = f"see kubectl describe pvc {claim['metadata']['name']}"
    detail = f"{phase}: class {chosen[0]['metadata']['name']} has made no volume yet"
    return Check(name=name, status="failed", detail=detail, remedy=remedy)


def _is_default(storage_class: dict[str, Any]) -> bool:
    return (storage_class["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"


def check_service_account(api: Api, cluster: Cluster, namespace: str, root: str | None) -> Iterator[Check]:
    """Whether the ServiceAccount of jobs is there, and which AWS role it takes."""
    account = cluster.service_account or "default"
    found = api.find(below(namespace, "serviceaccounts", account))
    if found is None:
        remedy = f"kubectl -n {namespace} create serviceaccount {account}, or correct cluster.service_account"
        detail = f"{namespace} has no {account}"
        yield Check(name="service account", status="failed", detail=detail, remedy=remedy)
        return
    role = (found["metadata"].get("annotations") or {}).get(ROLE_ANNOTATION)
    if role:
        yield Check(name="service account", status="passed", detail=f"{account} takes {role} (IRSA)")
    elif (root or "").startswith("s3://"):
        detail = (
            f"{account} names no AWS role: Pod Identity, Secrets or the node's role must give access to S3"
        )
        remedy = f"annotate it with {ROLE_ANNOTATION}, or make a Pod Identity association"
        yield Check(name="service account", status="passed", detail=detail, remedy=remedy)
    else:
        yield Check(name="service account", status="passed", detail=account)


def check_secrets(api: Api, cluster: Cluster, namespace: str) -> Iterator[Check]:
    """Whether each Secret holds the keys that are asked for; values are never looked at."""
    if not cluster.secrets and not cluster.notifications:
        yield Check(name="secrets", status="skipped", detail="the recipe names none")
    for secret, keys in cluster.secrets.items():
        yield _secret(api, namespace, secret, set(keys), every=True)
    if cluster.notifications:
        variables = {channel.variable for channel in CHANNELS}
        yield _secret(api, namespace, cluster.notifications, variables, every=False)


def _secret(api: Api, namespace: str, secret: str, keys: set[str], *, every: bool) -> Check:
    name = f"secret {secret}"
    try:
        found = api.find(below(namespace, "secrets", secret))
    except Refused as error:
        if error.status != 403:
            raise
        remedy = f"ask somebody who may: kubectl -n {namespace} describe secret {secret}"
        detail = "may not be read with your rights"
        return Check(name=name, status="skipped", detail=detail, remedy=remedy)
    wanted = ", ".join(sorted(keys))
    if found is None:
        example = " ".join(f"--from-literal={key}=..." for key in sorted(keys))
        remedy = f"kubectl -n {namespace} create secret generic {secret} {example}"
        return Check(name=name, status="failed", detail=f"{namespace} has none of this name", remedy=remedy)
    missing = keys - set(found.get("data") or ())
    if missing and (every or missing == keys):
        which = ", ".join(sorted(missing)) if every else f"one of {wanted}"
        return Check(
            name=name, status="failed", detail=f"lacks {which}", remedy="add the key(s) to the Secret"
        )
    return Check(name=name, status="passed", detail=f"holds {', '.join(sorted(keys - missing))}")
