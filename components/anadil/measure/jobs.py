"""Measurements on a cluster: one PyTorchJob of the Kubeflow training operator for each layout.

Apply one, wait for it, then the next: without a gang scheduler two jobs may each get half of
the machines. The result is a line in the log of one of the pods:

kubectl logs -l training.kubeflow.org/job-name=NAME --tail=-1 > NAME.log
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from anadil.config import Recipe
from anadil.errors import RecipeError
from anadil.measure.ask import STEPS, Ask
from anadil.measure.kept import device_of
from anadil.plan.layout import Layout, Work
from anadil.plan.machine import CPU, LOCAL, Machine
from anadil.plan.shape import Shape

log = logging.getLogger(__name__)

HOME = "/home/anadil"
USER = 1_000
"""Any user but root; nothing outside the volumes is written."""
CPUS, MEMORY_GIB = 4, 16
"""Asked for each device, at most half of the machine: one process and the libraries of CUDA. Assumption."""
SHARED_MEMORY = "8Gi"
"""For /dev/shm, of which NCCL takes some tens of MiB a process; the runtime's 64 MiB are too few."""
RENDEZVOUS_S = 1_800
"""How long the first pod waits for the last one to pull its image."""
KEPT_S = 86_400
"""How long a finished job stays, so that its log can be read."""
ENVIRONMENT = {
    "HOME": HOME,
    "USER": "anadil",  # libraries ask for a name, which a number alone does not have
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}
EFA_ENVIRONMENT = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_HUGE_PAGE": "0",  # so that the pod need not ask for huge pages
    "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
}
"""Source: AWS, awsome-distributed-training, PyTorch FSDP on EKS."""


def job_manifests(
    candidates: Sequence[Layout],
    recipe: Recipe,
    shape: Shape,
    work: Work,
    machine: Machine,
    nodes: int,
    image: str,
    *,
    steps: int = STEPS,
    timeout_s: int = 1_800,
) -> list[dict[str, Any]]:
    """PyTorchJobs that measure layouts on some machines of a type.

    Args:
        candidates: Layouts; each takes all devices.
        recipe: See `anadil.measure.runs.measure`.
        shape: The model; made at random, so that nothing is downloaded.
        work: What a step computes.
        machine: Of each node.
        nodes: Machines that train together.
        image: Of the pretrain stage.
        steps: Steps that are timed.
        timeout_s: For one job, from its start.

    Raises:
        RecipeError: A layout does not take all devices, or needs what this version's trainer has not.
    """
    if nodes > 1 and not machine.efa and machine.device != CPU:
        log.warning("%s: how many EFA interfaces it has is not known; its jobs talk over TCP", machine.name)
    for layout in candidates:
        if layout.devices != nodes * machine.devices:
            raise RecipeError(
                f"{layout.name()} takes {layout.devices} device(s), {nodes} x {machine.name} have "
                f"{nodes * machine.devices}; change the layout or cluster.nodes"
            )
        if (layout.shard, layout.tensor, layout.context, layout.pipeline) != (1, 1, 1, 1):
            raise RecipeError(
                f"{layout.name()}: this version's trainer keeps a full copy of the model on each device; "
                "measure layouts whose shard, tensor, context and pipeline are 1"
            )
    asks = [Ask.of(each, recipe, shape, work, device_of(machine), steps=steps) for each in candidates]
    return [_job(ask, machine, nodes, image, timeout_s) for ask in asks]


def _job(ask: Ask, machine: Machine, nodes: int, image: str, timeout_s: int) -> dict[str, Any]:
    arguments = ask.arguments()
    identity = json.dumps([arguments, machine.name, nodes, image])
    name = f"anadil-measure-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {
            "nprocPerNode": str(machine.devices),
            # Without a master, the operator tells torchrun where to meet only with this policy.
            "elasticPolicy": {
                "minReplicas": nodes,
                "maxReplicas": nodes,
                "rdzvBackend": "c10d",
                "rdzvId": name,
                "rdzvConf": [{"key": "timeout", "value": str(RENDEZVOUS_S)}],
                "maxRestarts": 0,
            },
            "runPolicy": {
                "cleanPodPolicy": "None",
                "activeDeadlineSeconds": timeout_s,
                "ttlSecondsAfterFinished": KEPT_S,
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": nodes,
                    "restartPolicy": "Never",
                    "template": {
                        "metadata": {"labels": _labels(name)},
                        "spec": _pod(arguments, machine, nodes, image),
                    },
                }
            },
        },
    }


def _labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "anadil",
        "app.kubernetes.io/component": "measure",
        "app.kubernetes.io/instance": name,
    }


def _pod(arguments: Sequence[str], machine: Machine, nodes: int, image: str) -> dict[str, Any]:
    environment = ENVIRONMENT | (EFA_ENVIRONMENT if _efa(machine, nodes) else {})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_affinity(machine),
        "containers": [
            {
                "name": "pytorch",  # the operator looks for this name
                "image": image,
                # torchrun, which takes where to meet and how many processes from the environment.
                "command": ["python", "-m", "torch.distributed.run", "-m", "anadil.measure"],
                "args": list(arguments),
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "resources": _resources(machine, nodes),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "home", "mountPath": HOME},
                    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  a volume of the pod's own
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  as above
                ],
            }
        ],
        "volumes": [
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
        ],
    }


def _affinity(machine: Machine) -> dict[str, Any]:
    """On nodes of the machine's type, whose name has `ml.` before it on HyperPod."""
    if machine.name == LOCAL:
        return {}
    name = machine.name.removeprefix("ml.")
    label = {
        "key": "node.kubernetes.io/instance-type",
        "operator": "In",
        "values": [name, f"ml.{name}"],
    }
    terms = {"nodeSelectorTerms": [{"matchExpressions": [label]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _efa(machine: Machine, nodes: int) -> int:
    return (machine.efa or 0) if nodes > 1 else 0


def _resources(machine: Machine, nodes: int) -> dict[str, Any]:
    """All devices of a node, and as much of the rest as their processes need."""
    cpus = max(1, min(CPUS * machine.devices, machine.vcpus // 2))
    memory = max(1, min(MEMORY_GIB * machine.devices, machine.ram_bytes // 2**31))
    devices: dict[str, str] = {}
    if machine.device != CPU:
        devices["nvidia.com/gpu"] = str(machine.devices)
    if efa := _efa(machine, nodes):
        devices["vpc.amazonaws.com/efa"] = str(efa)
    requests = {"cpu": str(cpus), "memory": f"{memory}Gi", **devices}
    # No limit on CPUs: a process that is throttled would be measured as slow.
    return {"requests": requests, "limits": {"memory": f"{memory}Gi", **devices}}
