"""Render the pod of a training process, the same in every Kubernetes form of a job.

It passes the Pod Security Standard "restricted": so no hostPath, and local NVMe is used where the
node keeps its pods' emptyDirs on it, or through a claim of `cluster.volumes`.
"""

import hashlib
import json
import logging
import math
import re
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import RecipeError
from anadil.core.format import GIB, amount
from anadil.estimate.instances import CPU, LOCAL, Machine
from anadil.launch.job import (
    DOMAIN,
    HOME,
    IMAGE_USER,
    PYTORCHJOB,
    QUEUE_LABEL,
    SPEC_ANNOTATION,
    TARGET_ANNOTATION,
    TRAINJOB,
    TrainingJob,
)
from anadil.recipe.cluster import Cluster, Resources
from anadil.runtime.threads import ASLEEP

log = logging.getLogger(__name__)

# How long a finished job stays, so that its log can be read and a launcher that comes back finds it.
KEPT_S = 86_400
# Seconds that the first pod waits for the last one to pull its image, and others for the first
# one to answer; torchrun's own 600 and 60 are too few where images are large and nodes are replaced.
# Source: PyTorch, elastic/rendezvous, which does not read the key `timeout` with the back end c10d.
RENDEZVOUS = {"join_timeout": "1800", "read_timeout": "600"}
RUNTIME = "torch-distributed"  # ClusterTrainingRuntime that Trainer 2 installs.
MANAGER = f"{DOMAIN}/launch"
# Fields of a pod that a patch of the runtime may hold.
PATCHED = (
    "serviceAccountName", "imagePullSecrets", "terminationGracePeriodSeconds", "nodeSelector", "affinity",
    "tolerations", "securityContext", "volumes",
)  # fmt: skip
# Where the metrics of a training pod are read. Source: OpenTelemetry's default for Prometheus.
METRICS_PORT = 9_464
# Time to save after SIGTERM: more than the 110 s that torchrun waits for its processes.
TERMINATION_GRACE_S = 150
# Most of /dev/shm, of which NCCL takes some tens of MiB a process; the runtime's 64 MiB are too few.
# Used bytes count as memory of the pod.
SHARED_MEMORY = {"gpu": "8Gi", "cpu": "1Gi"}
TMP = "/tmp"  # noqa: S108  a volume of the pod's own
SHM = "/dev/shm"  # noqa: S108  as above
POD_WORK = f"{HOME}/work"  # Work directory that a restarted container finds again, and a new pod does not.
COMMON_ENVIRONMENT = {
    "HOME": HOME,
    "USER": "anadil",  # libraries ask for a name, which a number alone does not have
    "PYTHONDONTWRITEBYTECODE": "1",
    **ASLEEP,
}
# With the flight recorder: which collective each rank was in when one hung.
# Source: PyTorch, c10d/FlightRecorder.hpp; 20,000 entries as in awsome-distributed-training.
GPU_ENVIRONMENT = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "NCCL_DEBUG": "WARN",
    "TORCH_FR_BUFFER_SIZE": "20000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_TEMP_FILE": f"{TMP}/nccl_trace_rank_",
}
# Source: AWS, awsome-distributed-training, efa-cheatsheet.md: all that today's libfabric needs.
EFA_ENVIRONMENT = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_HUGE_PAGE": "0",  # so that the pod need not ask for huge pages, which a node may not have
    "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
}
HEALTH = "sagemaker.amazonaws.com/node-health-status"
# Labels of HyperPod's nodes. Source: Amazon SageMaker AI guide, "Kubernetes labels by HyperPod".
DEEP_HEALTH = "sagemaker.amazonaws.com/deep-health-check-status"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"  # Source: Kueue, pkg/controller/constants.
# Annotation of the pods. Source: Kueue, apis/kueue/v1beta1; Amazon SageMaker AI guide, "Topology-aware scheduling".
TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-preferred-topology"
RESUME_ANNOTATION = "sagemaker.amazonaws.com/enable-job-auto-resume"
# Both or none. Source: Amazon SageMaker AI guide, "Run jobs using kubectl"; aws/sagemaker-hyperpod-cli.
RETRIES_ANNOTATION = "sagemaker.amazonaws.com/job-max-retry-count"
MAX_NAME = 52  # Characters of a job's name: the operator adds `-worker-999`, and a label holds 63.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # Source: RFC 1035 label, which the operator asks for.
# Source: Kubernetes, "Labels and Selectors".
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
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


def render_pytorchjob(job: TrainingJob) -> dict[str, Any]:
    """Return the manifest of a job, whose deadline runs from the first running pod."""
    cluster, nodes, restarts = job.recipe.cluster, job.nodes, job.recipe.cluster.restarts
    metadata = metadata_of(job)
    metadata["annotations"] |= resume_annotations(cluster)
    warn_of_lost_work(job)
    template, deadline = template_of(job, container_of(job, PYTORCHJOB.container)), deadline_s(job)
    # Counted are restarts of containers over all pods, and the job fails when the count is reached;
    # the operator's limit of 0 fails it at the first pod that failed.
    backoff = restarts * nodes + 1 if restarts else 0
    manifest = {
        "apiVersion": PYTORCHJOB.api_version,
        "kind": PYTORCHJOB.title,
        "metadata": metadata,
        "spec": {
            "nprocPerNode": str(job.processes),
            # Without a master, the operator tells torchrun where to meet only with this policy.
            "elasticPolicy": {
                "minReplicas": nodes,
                "maxReplicas": nodes,
                "rdzvBackend": "c10d",
                # Without an id of its own, torchrun calls every job `none`.
                "rdzvId": metadata["name"],
                "rdzvConf": [{"key": key, "value": value} for key, value in RENDEZVOUS.items()],
                "maxRestarts": restarts,
            },
            "runPolicy": {
                # The job counts as done when the first pod is; the others may still be writing.
                "cleanPodPolicy": "None",
                "backoffLimit": backoff,
                **({"activeDeadlineSeconds": deadline} if deadline else {}),
                "ttlSecondsAfterFinished": KEPT_S,
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": nodes,
                    "restartPolicy": "OnFailure" if restarts else "Never",
                    "template": template,
                }
            },
        },
    }
    return with_hash(manifest)


def deadline_s(job: TrainingJob) -> int | None:
    """Return `cluster.deadline_hours` in whole seconds."""
    hours = job.recipe.cluster.deadline_hours
    return math.ceil(hours * 3_600) if hours else None


def warn_of_lost_work(job: TrainingJob) -> None:
    """Warn where a replaced pod would start over."""
    if "://" in job.target and job.recipe.cluster.work is None:
        log.warning(
            "%s: checkpoints stay in the pod: a restarted container resumes from them, a pod on "
            "another node starts over; name a directory of a shared volume as cluster.work", job.name
        )  # fmt: skip


def render_trainjob(job: TrainingJob) -> dict[str, Any]:
    """Return the manifest of a job."""
    if job.recipe.cluster.hyperpod:
        log.warning(
            "cluster.hyperpod: HyperPod does not resume a TrainJob; use the backend pytorchjob for that"
        )
    warn_of_lost_work(job)
    # The trainer tells torchrun by PET_* variables where to meet, and refuses a job that sets them. The runtime has a
    # command of its own, so the image's entrypoint has to be said.
    template = template_of(
        job, container_of(job, TRAINJOB.container, ("python", "-m", f"anadil.{job.stage}"))
    )
    pod = template["spec"]
    container = pod["containers"][0]
    deadline = deadline_s(job)
    patch = {
        "metadata": template["metadata"],
        "spec": {
            **{name: pod[name] for name in PATCHED if name in pod},
            "containers": [{name: container[name] for name in ("name", "securityContext", "volumeMounts")}],
        },
    }
    # The runtime has one job.
    only = {"name": TRAINJOB.container, "template": {"spec": {"template": patch}}}
    runtime = {"template": {"spec": {"replicatedJobs": [only]}}}
    manifest = {
        "apiVersion": TRAINJOB.api_version,
        "kind": TRAINJOB.title,
        "metadata": metadata_of(job),
        "spec": {
            "runtimeRef": {"apiGroup": TRAINJOB.group, "kind": "ClusterTrainingRuntime", "name": RUNTIME},
            "trainer": {
                "numNodes": job.nodes,
                "numProcPerNode": job.processes,
                **{name: container[name] for name in ("image", "command", "args", "env")},
                "resourcesPerNode": container["resources"],
            },
            **({"activeDeadlineSeconds": deadline} if deadline else {}),
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": runtime}],
        },
    }
    return with_hash(manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container of a pod."""

    name: str
    image: str
    command: tuple[str, ...] = ()  # Left out, the image's own entrypoint.
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    ports: tuple[tuple[str, int], ...] = ()


def container_of(job: TrainingJob, name: str, command: tuple[str, ...] = ()) -> Container:
    """Return the training container of a job."""
    environment = {
        "ANADIL_LOG": "json",
        "ANADIL_IMAGE": job.image,
        "ANADIL_RUN_ID": job.run or job.name,
        "ANADIL_WORK": job.recipe.cluster.work or POD_WORK,
        "ANADIL_METRICS_PORT": str(METRICS_PORT),
    }
    return Container(
        name=name, image=job.image, command=command, arguments=job.arguments, environment=environment,
        ports=(("metrics", METRICS_PORT),),
    )  # fmt: skip


def template_of(job: TrainingJob, container: Container) -> dict[str, Any]:
    """Return the pod template of a job."""
    return template(
        container, job.recipe.cluster, job.labels, machine=job.machine, devices=job.devices, nodes=job.nodes,
        asked=job.recipe.cluster.resources.get(job.stage), key=f"cluster.resources.{job.stage}",
    )  # fmt: skip


def template(
    container: Container, cluster: Cluster, labels: dict[str, str], *, machine: Machine | None, devices: int,
    nodes: int, asked: Resources | None = None, key: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return a pod template with one container; see `requirements` for the arguments."""
    needs = requirements(machine, devices, nodes, asked, key=key)
    environment = COMMON_ENVIRONMENT | container.environment
    if devices:
        environment |= GPU_ENVIRONMENT | (EFA_ENVIRONMENT if EFA in needs["requests"] else {})
    mounts, volumes = _volumes(cluster, "gpu" if devices else "cpu")
    ports = [{"name": name, "containerPort": port} for name, port in container.ports]
    annotations = topology_annotations(cluster)
    pull_secrets = [{"name": each} for each in cluster.pull_secrets]
    return {
        "metadata": {"labels": dict(labels), **({"annotations": annotations} if annotations else {})},
        "spec": {
            **({"serviceAccountName": cluster.service_account} if cluster.service_account else {}),
            **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": TERMINATION_GRACE_S,
            **_placement(cluster, machine),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": IMAGE_USER,
                "runAsGroup": IMAGE_USER,
                "fsGroup": IMAGE_USER,
                # Not each file of a file system with checkpoints at each start of a pod.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": container.name,
                    "image": container.image,
                    **({"command": list(container.command)} if container.command else {}),
                    "args": [_literal(argument) for argument in container.arguments],
                    "env": _variables(environment, cluster),
                    **({"ports": ports} if ports else {}),
                    "resources": needs,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def with_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """Annotate a manifest with the SHA-256 of all but its annotations, by which a launcher knows a job again."""
    metadata = manifest["metadata"]
    plain = {**manifest, "metadata": {key: metadata[key] for key in metadata if key != "annotations"}}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    annotations = {
        **metadata.get("annotations", {}),
        SPEC_ANNOTATION: hashlib.sha256(text.encode()).hexdigest(),
    }
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _literal(text: str) -> str:
    """Escape a text, in which Kubernetes would replace `$(NAME)`."""
    return text.replace("$", "$$")


def _variables(environment: dict[str, str], cluster: Cluster) -> list[dict[str, Any]]:
    plain = [{"name": name, "value": _literal(value)} for name, value in environment.items()]
    # So that a failure names the machine.
    paths = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName"}
    fields = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]
    secret = [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
        for name, keys in cluster.secrets.items()
        for key in keys
    ]
    return [*plain, *fields, *secret]


def _volumes(cluster: Cluster, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return mounts and volumes: directories of the pod, unless a claim takes their place, and the claims."""
    directories: dict[str, tuple[str, dict[str, Any]]] = {
        HOME: ("home", {}),
        TMP: ("tmp", {}),
        SHM: ("shm", {"medium": "Memory", "sizeLimit": SHARED_MEMORY[kind]}),
    }
    taken = {volume.path for volume in cluster.volumes}
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    for path, (name, source) in directories.items():
        if path not in taken:
            mounts.append({"name": name, "mountPath": path})
            volumes.append({"name": name, "emptyDir": source})
    for number, volume in enumerate(cluster.volumes):
        read_only = {"readOnly": True} if volume.read_only else {}
        # A claim's name may have dots, which the name of a volume may not.
        mounts.append({"name": f"claim-{number}", "mountPath": volume.path, **read_only})
        claim = {"claimName": volume.claim, **read_only}
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": claim})
    return mounts, volumes


def _placement(cluster: Cluster, machine: Machine | None) -> dict[str, Any]:
    if any(each.key == HEALTH for each in cluster.tolerations):
        raise RecipeError(
            f"cluster.tolerations: {HEALTH} keeps pods off nodes that are checked or replaced; leave it out"
        )
    required: list[dict[str, Any]] = []
    if machine and machine.name != LOCAL:
        name = machine.name.removeprefix("ml.")
        # HyperPod writes `ml.` before the type.
        required.append(_in("node.kubernetes.io/instance-type", name, f"ml.{name}"))
    affinity: dict[str, Any] = {}
    if cluster.hyperpod:
        required.append(_in(HEALTH, "Schedulable"))
    if required:
        terms = {"nodeSelectorTerms": [{"matchExpressions": required}]}
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    if cluster.hyperpod:
        # Preferred only: nodes of a group without deep health checks never get the label.
        passed = {"weight": 100, "preference": {"matchExpressions": [_in(DEEP_HEALTH, "Passed")]}}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [passed]
    placement = {
        "nodeSelector": dict(cluster.node_selector),
        "affinity": {"nodeAffinity": affinity} if affinity else {},
        "tolerations": [each.model_dump(exclude_none=True) for each in cluster.tolerations],
    }
    return {key: value for key, value in placement.items() if value}


def _in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def metadata_of(job: TrainingJob) -> dict[str, Any]:
    """Return the metadata of a job's resource."""
    labels = job.labels | queue_labels(job.recipe.cluster)
    for name, value in labels.items():
        if not LABEL_VALUE.fullmatch(value):
            raise RecipeError(
                f"label {name}: {value!r} is no label of Kubernetes; use up to 63 letters, digits, `-`, `_` "
                "and `.`, the first and last a letter or digit (--run gives the name of a run)"
            )
    namespace = job.recipe.cluster.namespace
    return {
        "name": checked_name(job.name),
        **({"namespace": namespace} if namespace else {}),
        "labels": labels,
        "annotations": {TARGET_ANNOTATION: job.target},
    }


def queue_labels(cluster: Cluster) -> dict[str, str]:
    """Return labels by which Kueue holds a job until its queue has room."""
    if cluster.priority and not cluster.queue:
        raise RecipeError(
            f"cluster.priority: {cluster.priority}, but no cluster.queue; jobs without a queue have no "
            "priority: name the LocalQueue, or leave the priority out"
        )
    labels = {QUEUE_LABEL: cluster.queue, PRIORITY_LABEL: cluster.priority}
    return {name: value for name, value in labels.items() if value}


def topology_annotations(cluster: Cluster) -> dict[str, str]:
    """Return annotations of pods by which Kueue puts them onto nodes that are near each other."""
    if cluster.topology and not cluster.queue:
        raise RecipeError(
            f"cluster.topology: {cluster.topology}, but no cluster.queue; only Kueue places pods by it: name the "
            "LocalQueue, or leave the topology out"
        )
    return {TOPOLOGY_ANNOTATION: cluster.topology} if cluster.topology else {}


def resume_annotations(cluster: Cluster) -> dict[str, str]:
    """Return annotations by which HyperPod starts a PyTorchJob again when it has replaced a node."""
    if not cluster.hyperpod or not cluster.restarts:
        return {}
    namespace = cluster.namespace
    if namespace is None or not (namespace == "kubeflow" or namespace.startswith("hyperpod")):
        raise RecipeError(
            f"cluster.namespace: {namespace or 'not set'}; HyperPod resumes jobs only in `kubeflow` and in "
            "namespaces that begin with `hyperpod`, such as hyperpod-ns-TEAM; name one, or set "
            "cluster.hyperpod to false"
        )
    return {RESUME_ANNOTATION: "true", RETRIES_ANNOTATION: str(cluster.restarts)}


def checked_name(name: str) -> str:
    """Return the name, unless it is not valid for pods and services."""
    if len(name) > MAX_NAME or not JOB_NAME.fullmatch(name):
        raise RecipeError(
            f"job name {name!r}: use {MAX_NAME} characters at most, small letters, digits and `-`, "
            "beginning with a letter and not ending with `-`"
        )
    return name


def requirements(
    machine: Machine | None, devices: int, nodes: int, asked: Resources | None = None, *, key: str = ""
) -> dict[str, Any]:
    """Return `resources` of the training container; the recipe's own amounts go before the defaults."""
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
    for name, text, most in (("cpu", asked.cpu, machine.vcpus), ("memory", asked.memory, machine.ram_bytes)):
        if text and amount(text) >= most:
            cpus, gib = most_for_pods(machine)
            raise RecipeError(
                f"{key}.{name}: {text}, but a {machine.name} leaves about {cpus} CPUs and {gib}Gi to pods; "
                "the job would wait forever; ask for less"
            )
