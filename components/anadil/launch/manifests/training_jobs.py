"""Render a training job as a PyTorchJob of the Kubeflow training operator, or as a TrainJob of Kubeflow Trainer 2.

A PyTorchJob has only fields of the operator 1.7, which HyperPod installs. All its pods are workers: with a master, each
would first wait for a public image that looks up its name. A TrainJob fills in the runtime `torch-distributed`, which
decides how often a failed job is restarted, how long a finished one is kept, and on the token of the ServiceAccount.

Source: kubeflow/trainer 1.9.4, pkg/apis/kubeflow.org/v1, pkg/controller.v1/pytorch, pkg/webhooks; 2.3.0,
manifests/base/crds, plugins torch and jobset.
"""

import logging
import math
from typing import Any

from anadil.launch.job import DOMAIN, PYTORCHJOB, TRAINJOB, TrainingJob
from anadil.launch.manifests.pod import container_of, metadata_of, resume_annotations, template_of, with_hash

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


def render_pytorchjob(job: TrainingJob) -> dict[str, Any]:
    """Return the manifest of a job."""
    cluster = job.recipe.cluster
    metadata = metadata_of(job)
    metadata["annotations"] |= resume_annotations(cluster)
    warn_of_lost_work(job)
    template = template_of(job, container_of(job, PYTORCHJOB.container))
    manifest = pytorchjob(
        metadata, template, nodes=job.nodes, processes=job.processes, restarts=cluster.restarts,
        deadline_s=deadline_s(job),
    )  # fmt: skip
    return with_hash(manifest)


def pytorchjob(
    metadata: dict[str, Any],
    template: dict[str, Any],
    *,
    nodes: int,
    processes: int,
    restarts: int,
    deadline_s: int | None,
) -> dict[str, Any]:
    """Return a PyTorchJob of pods that train together, each from a template with a container `pytorch`.

    Processes, and then containers, are started again `restarts` times; the deadline runs from the first running pod.
    """
    # Counted are restarts of containers over all pods, and the job fails when the count is reached;
    # the operator's limit of 0 fails it at the first pod that failed.
    backoff = restarts * nodes + 1 if restarts else 0
    return {
        "apiVersion": PYTORCHJOB.api_version,
        "kind": PYTORCHJOB.title,
        "metadata": metadata,
        "spec": {
            "nprocPerNode": str(processes),
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
                **({"activeDeadlineSeconds": deadline_s} if deadline_s else {}),
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
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": _around(patch)}],
        },
    }
    return with_hash(manifest)


def _around(template: dict[str, Any]) -> dict[str, Any]:
    """Wrap a pod template as the patch of a runtime with one job."""
    job = {"name": TRAINJOB.container, "template": {"spec": {"template": template}}}
    return {"template": {"spec": {"replicatedJobs": [job]}}}
