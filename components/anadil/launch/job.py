"""One training stage as a job of its own, which each backend renders in its own form."""

import copy
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from anadil.core import errors
from anadil.core.errors import AnadilError, PreflightError, RecipeError, RetryableError
from anadil.core.format import visible, visible_lines
from anadil.core.stages import STAGES
from anadil.estimate.instances import CPU, Machine, machine
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import options_of
from anadil.runtime.job import most_processes
from anadil.runtime.lookup import may_remake

DOMAIN = "anadil.dev"
RUN_LABEL = f"{DOMAIN}/run"  # The pipeline run, or the name of the launch, that a job belongs to.
STAGE_LABEL = "app.kubernetes.io/component"
SPEC_ANNOTATION = f"{DOMAIN}/spec-hash"  # SHA-256 of the manifest, by which a launcher knows a job again.
OUR_JOBS = "app.kubernetes.io/managed-by=anadil-launch"  # Label selector of all jobs of launchers.
TARGET_ANNOTATION = f"{DOMAIN}/artifact"  # URI of the artifact that the job writes.
HOME = "/home/anadil"
IMAGE_USER = 10_001  # Numeric user and group of every image; nothing outside the volumes is written.
# A manifest asks for it many times, and the table takes some 30 ms to read.
_machine = functools.cache(machine)
JobState = Literal["queued", "starting", "running", "restarting", "succeeded", "failed", "stopped"]
FINAL: tuple[JobState, ...] = ("succeeded", "failed", "stopped")
# 128 + SIGKILL: by the kernel where memory ran out, by the kubelet where the time to save was over.
KILLED = 137
# The container's program does not exist or cannot run. Source: POSIX; containerd.
CANNOT_START = (126, 127, 128)
RESUME_HINT = "launch it again to resume from its last checkpoint"
ApiObject = dict[str, Any]  # A Kubernetes object as JSON.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Source: Kueue, pkg/controller/constants.
# Multiple of the recipe's restarts that the operator allows a followed job. Chosen by us:
# with 3 restarts on 8 nodes a hundred drains, and a job that lost its launcher still ends within a day or two.
DRAINS_ALLOWED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A training stage, its inputs and where its artifact goes."""

    stage: str
    recipe: Recipe
    inputs: dict[str, str]  # Artifact word -> URI.
    files: tuple[str, ...] = ()  # Outside files instead of the recipe's.
    target: str  # URI of the artifact.
    run: str = ""  # Pipeline run that it belongs to.

    @property
    def name(self) -> str:
        """Name that follows from the work, so that a launcher that starts again finds its job."""
        identity = json.dumps([self.stage, self.target, self.run])
        return f"anadil-{self.stage}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    @property
    def machine(self) -> Machine | None:
        """The machine type of each node; None where the recipe names none, and no GPU is asked for."""
        instance = self.recipe.cluster.instance
        return _machine(instance) if instance else None

    @property
    def nodes(self) -> int:
        """Machines that train together."""
        return self._used[0]

    @property
    def devices(self) -> int:
        """GPUs of each node."""
        asked = self.recipe.cluster.resources.get(self.stage)
        return asked.gpus if asked and asked.gpus is not None else self._used[1]

    @property
    def processes(self) -> int:
        """Training processes of each node."""
        stage = STAGES[self.stage]
        if not stage.training:
            return 1
        count = self.recipe.cluster.processes_per_node or max(1, self.devices)
        return min(count, most_processes(stage, self.recipe))

    @property
    def _used(self) -> tuple[int, int]:
        """Nodes, and GPUs of each, unless `cluster.resources` says so of this stage."""
        cluster, stage = self.recipe.cluster, STAGES[self.stage]
        if self.machine is None or self.machine.device == CPU:
            scales = stage.training and not stage.training.most_processes
            return (cluster.nodes if scales else 1), 0
        # Here, because it needs models, which what drives pods of `clean` has not.
        from anadil.plan.needs import stage_devices

        return stage_devices(self.stage, self.recipe, self.machine, cluster.nodes)

    @property
    def image(self) -> str:
        """Image of the stage."""
        return self.recipe.image_of(self.stage)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Command line of `python -m anadil.<stage>`, with the whole recipe."""
        recipe = self.recipe.model_dump_json(exclude_unset=True)
        flag = STAGES[self.stage].files.flag
        files = [f"--{flag}", *self.files] if self.files else []
        remake = ["--remake"] if may_remake() and STAGES[self.stage].costly else []
        return ("--recipe", recipe, *options_of(self.inputs), *files, "--out", self.target, *remake)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job and its pods."""
        return labels_of(self.stage, self.name, self.run, "anadil-launch")


def labels_of(stage: str, name: str, run: str, manager: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a job of this name."""
    return {
        "app.kubernetes.io/name": "anadil",
        STAGE_LABEL: stage,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": manager,
        RUN_LABEL: run or name,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """State of a job."""

    name: str
    state: JobState
    reason: str = ""  # The backend's own word, such as `OOMKilled` or `MaxWaitTimeExceeded`.
    message: str = ""  # For people: the reason that it waits or failed.
    nodes: int = 0  # Workers asked for.
    running: int = 0  # Workers that run.
    restarts: int = 0
    seconds: float | None = None  # Since its first worker ran; None before.
    artifact: str = ""  # URI that it writes.
    exit_code: int | None = None  # That of the process that failed first, where it is known.


class JobBackend(Protocol):
    """One way to run a training job."""

    def render(self, job: TrainingJob) -> dict[str, Any]:
        """Return the exact manifest or request, without side effects."""

    def run(self, job: TrainingJob, *, detach: bool = False) -> None:
        """Start the job, or adopt the one of the same name, and follow it to its end.

        If `detach`, return once it is started; then no signal ends it.
        """

    def status(self, name: str) -> JobStatus:
        """Return the state of the job of a name."""

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield log lines of the first worker, without line ends."""

    def stop(self, name: str) -> bool:
        """End the job, which saves first; return False where it had ended before."""


def log_fields(line: str) -> dict[str, Any]:
    """Return the JSON object of a stage's log line; empty where it is something else."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def format_log_line(line: str) -> str:
    """Format a stage's JSON line as `stage: message`; other lines stay, without control characters."""
    fields = log_fields(line)
    if not {"level", "stage", "msg"} <= fields.keys():
        return visible(line)
    level = "" if fields["level"] == "info" else f"{fields['level']}: "
    return visible_lines(f"{fields['stage']}: {level}{fields['msg']}")


def error_from_exit_code(exit_code: int | None, text: str, reason: str = "") -> AnadilError:
    """Return the error of the exit code of the process that failed first; the reason is the cluster's own word."""
    if reason == "OOMKilled":
        return PreflightError(
            f"{text}; more memory is needed: raise cluster.resources, or let `anadil plan` say how much"
        )
    if exit_code in CANNOT_START or reason in ("StartError", "ContainerCannotRun"):
        return PreflightError(f"{text}; the image cannot start: correct cluster.image")
    if exit_code == RecipeError.exit_code:
        return RecipeError(f"{text}; correct the recipe and launch it again")
    if kind := errors.BY_EXIT_CODE.get(exit_code or 0):
        resumable = kind in (errors.BudgetReached, RetryableError, errors.Stopped)
        return kind(f"{text}; {'' if resumable else 'then '}{RESUME_HINT}")
    if exit_code is None or exit_code == KILLED:
        return RetryableError(f"{text}; {RESUME_HINT}")
    error = AnadilError(f"{text}; see its log, then {RESUME_HINT}")
    if exit_code in (errors.BUG, errors.INTERRUPTED):
        error.exit_code = exit_code
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One custom resource that runs a training job."""

    name: str  # Name of the backend in the recipe.
    title: str  # `kind` of the manifest.
    group: str
    version: str
    plural: str
    container: str  # Name of the container that trains, which operator and runtime look for.
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
