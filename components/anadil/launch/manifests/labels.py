"""Name, labels and annotations of a job, which queues and HyperPod read."""

import re
from typing import Any

from anadil.core.errors import RecipeError
from anadil.launch.job import TARGET_ANNOTATION, TrainingJob
from anadil.launch.kinds import QUEUE_LABEL
from anadil.recipe.cluster import Cluster

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


def metadata_of(job: TrainingJob) -> dict[str, Any]:
    """Return the metadata of a job's resource.

    Raises:
        RecipeError: Kubernetes does not take a label.
    """
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
    """Return labels by which Kueue holds a job until its queue has room.

    Raises:
        RecipeError: A priority without a queue, which Kueue would ignore.
    """
    if cluster.priority and not cluster.queue:
        raise RecipeError(
            f"cluster.priority: {cluster.priority}, but no cluster.queue; jobs without a queue have no "
            "priority: name the LocalQueue, or leave the priority out"
        )
    labels = {QUEUE_LABEL: cluster.queue, PRIORITY_LABEL: cluster.priority}
    return {name: value for name, value in labels.items() if value}


def topology_annotations(cluster: Cluster) -> dict[str, str]:
    """Return annotations of pods by which Kueue puts them onto nodes that are near each other.

    Raises:
        RecipeError: A topology without a queue, which Kueue would ignore.
    """
    if cluster.topology and not cluster.queue:
        raise RecipeError(
            f"cluster.topology: {cluster.topology}, but no cluster.queue; only Kueue places pods by it: name the "
            "LocalQueue, or leave the topology out"
        )
    return {TOPOLOGY_ANNOTATION: cluster.topology} if cluster.topology else {}


def resume_annotations(cluster: Cluster) -> dict[str, str]:
    """Return annotations by which HyperPod starts a PyTorchJob again when it has replaced a node.

    Raises:
        RecipeError: HyperPod does not look into the namespace.
    """
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
