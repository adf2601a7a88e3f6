"""Kinds of Kubernetes jobs that we launch, and the states that their operators report."""

import copy
from dataclasses import dataclass
from typing import Any

from anadil.launch.job import JobState

ApiObject = dict[str, Any]  # A Kubernetes object as JSON.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Source: Kueue, pkg/controller/constants.
# Multiple of the recipe's restarts that the operator allows a followed job. Chosen by us:
# with 3 restarts on 8 nodes a hundred drains, and a job that lost its launcher still ends within a day or two.
DRAINS_ALLOWED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One custom resource that runs a training job."""

    name: str  # Name of the backend in the recipe.
    title: str  # `kind` of the manifest.
    group: str
    version: str
    plural: str
    container: str
    """Name of the container that trains, which operator and runtime look for."""
    job_label: str  # Label of a pod: the job that it belongs to.
    index_label: str  # Label of a pod: its number among the workers.
    selector: str  # More labels of the pods that train.
    suspend: tuple[str, ...]
    """Path in the spec of the flag that holds the job back; its deadline stands beside."""
    done: str  # Condition of a job that ended well.
    operator: str  # The operator that makes pods of it, and the command that shows it.

    @property
    def api_version(self) -> str:
        """`apiVersion` of the manifest."""
        return f"{self.group}/{self.version}"

    def with_loose_limits(self, manifest: ApiObject, seconds: int) -> ApiObject:
        """Return a manifest whose deadline is `seconds` later and whose restarts are many: its launcher keeps the limits."""
        # The operator counts time in the queue, and the restarts of a drained pod's peers, which are no failures.
        loose: ApiObject = copy.deepcopy(manifest)
        policy = loose["spec"]
        for key in self.suspend[:-1]:
            policy = policy[key]
        if "activeDeadlineSeconds" in policy:
            policy["activeDeadlineSeconds"] += seconds
        if "backoffLimit" in policy:
            policy["backoffLimit"] *= DRAINS_ALLOWED
        return loose

    def is_suspended(self, job: ApiObject) -> bool:
        """Return whether the job shall not run now: queued or preempted."""
        value: Any = job.get("spec") or {}
        for key in self.suspend:
            value = value.get(key) or {}
        return value is True or "Suspended" in true_conditions(job)

    def state(self, job: ApiObject, *, running: int) -> JobState:
        """Return the state of a job of which `running` workers run.

        Source: kubeflow/trainer v1.9.4, pkg/util/status.go; v2.3.0, pkg/controller.
        """
        # Conditions of earlier states stay in the list with status False, and their order says nothing. A failure
        # outweighs a success.
        true = true_conditions(job)
        if "Failed" in true:
            return "failed"
        if self.done in true:
            return "succeeded"
        if self.is_suspended(job):
            return "queued"
        if "Restarting" in true:
            return "restarting"
        return "running" if running else "starting"


PYTORCHJOB = JobKind(
    name="pytorchjob", title="PyTorchJob", group="kubeflow.org", version="v1", plural="pytorchjobs",
    container="pytorch", job_label="training.kubeflow.org/job-name",
    index_label="training.kubeflow.org/replica-index", selector="", suspend=("runPolicy", "suspend"),
    done="Succeeded",
    operator="the Kubeflow training operator 1.7 to 1.9; look for it with `kubectl get deployments -A | grep training-operator`",
)  # fmt: skip
TRAINJOB = JobKind(
    name="trainjob", title="TrainJob", group="trainer.kubeflow.org", version="v1alpha1", plural="trainjobs",
    container="node", job_label="jobset.sigs.k8s.io/jobset-name",
    index_label="batch.kubernetes.io/job-completion-index", selector=",jobset.sigs.k8s.io/replicatedjob-name=node",
    suspend=("suspend",), done="Complete",
    operator="Kubeflow Trainer 2 with JobSet; look for it with `kubectl get deployments -A | grep trainer`",
)  # fmt: skip
JOB_KINDS = {kind.name: kind for kind in (PYTORCHJOB, TRAINJOB)}


def true_conditions(job: ApiObject) -> dict[str, ApiObject]:
    """Return the conditions of a job that hold now, by type."""
    listed = (job.get("status") or {}).get("conditions") or []
    return {each["type"]: each for each in listed if each.get("status") == "True"}


def is_final(kind: JobKind, job: ApiObject) -> bool:
    """Return whether a job has ended, well or not."""
    return not {"Failed", kind.done}.isdisjoint(true_conditions(job))


def annotations(job: ApiObject) -> dict[str, str]:
    """Return the annotations of an object."""
    result: dict[str, str] = job["metadata"].get("annotations") or {}
    return result


def labels(job: ApiObject) -> dict[str, str]:
    """Return the labels of an object."""
    result: dict[str, str] = job["metadata"].get("labels") or {}
    return result
