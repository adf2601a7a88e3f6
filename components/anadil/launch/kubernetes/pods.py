"""Workers of a job and their failures, read from its pods."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from anadil.core.errors import BUG, RetryableError, Stopped
from anadil.launch.job import QUEUE_LABEL, ApiObject, JobKind, labels, log_fields
from anadil.runtime.termination import CAUSED_BY_PEER, DETERMINISTIC, is_deterministic

# Reasons of a waiting container that no patience changes. Source: kubelet, images/types.go.
PERMANENT_WAITS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
# Reasons of a failed pod that are not its own doing. Source: kubelet, eviction, nodeshutdown, preemption.
INFRASTRUCTURE = frozenset(
    [
        "Evicted", "NodeLost", "NodeShutdown", "Terminated", "Preempting", "UnexpectedAdmissionError",
        "Shutdown",
    ]
)  # fmt: skip
NO_TIME = datetime.min.replace(tzinfo=UTC)
# Words of a reason or a message -> remedy. Source: kubelet, scheduler and admission messages.
PENDING_REMEDIES = {
    "exceeded quota": "ask for a larger ResourceQuota, or for less in cluster.resources",
    "persistentvolumeclaim": "make the claim that cluster.volumes names, in the job's namespace",
    "unbound immediate PersistentVolumeClaims": "make a volume for the claim: `kubectl get pvc` shows which",
    "Unschedulable": "free or add nodes, or correct cluster.node_selector, tolerations and resources",
    "InvalidImageName": "correct cluster.image",
    "ErrImageNeverPull": "put the image on the nodes, or let them pull it",
    "ImagePullBackOff": "push the image, correct cluster.image, or let the ServiceAccount pull it",
    "ErrImagePull": "push the image, correct cluster.image, or let the ServiceAccount pull it",
    "CreateContainerConfigError": "make the secret that cluster.secrets names, in the job's namespace",
    "violates PodSecurity": "allow the profile of the manifest in the namespace's labels",
    "FailedMount": "check the claim and the driver of its volume",
}
# A pull's message where the registry answers, and has no such image. Source: containerd, CRI-O, Docker Hub, ECR;
# distribution-spec, error codes.
NO_SUCH_IMAGE = re.compile(
    r"(?i)not found|(manifest|name)[ _]unknown|(repository|manifest)\b.* does not exist"
)
# A pull's message where the registry is not reached, which passes.
REGISTRY_OUTAGE = re.compile(
    r"(?i)no such host|timeout|timed out|connection (refused|reset)|\b5\d\d\b|EOF|x509|toomanyrequests"
)
PULL_REASONS = ("ErrImagePull", "ImagePullBackOff")
# Reasons of a pod that is on its way; only an event says why it does not get on.
STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing", ""})


class TerminationMessage(NamedTuple):
    """The last words of a stage: what it wrote to its termination log."""

    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFailure:
    """The end of one start of a worker's container, which was not well."""

    index: int  # Number of the worker.
    pod: str
    life: str  # Pod and start of its container: no two failures have the same.
    node: str
    exit_code: int | None
    reason: str
    message: str = ""
    finished: datetime = NO_TIME
    is_disruption: bool = False  # True if the cluster took the pod away: an eviction, a drain, a preemption.
    previous: bool = False  # True if its log is that of the container before the one that runs.

    @property
    def stage_code(self) -> int | None:
        """Exit code of the stage itself, if its termination message has one."""
        last = read_termination_message(self.message).exit_code
        # The last word may be that of a process that was told to stop, or lost the one that had failed.
        outdone = last in (Stopped.exit_code, RetryableError.exit_code) and self.exit_code in DETERMINISTIC
        return self.exit_code if last is None or outdone else last

    @property
    def would_come_again(self) -> bool:
        """True if another start would end the same."""
        last = read_termination_message(self.message)
        # Only its last words tell a bug from broken hardware.
        is_told = last.exit_code is not None or self.stage_code != BUG
        return is_told and is_deterministic(self.stage_code, last.message)

    @property
    def rank(self) -> int:
        """Place among the failures of a round; the lowest is the cause."""
        return blame_rank(self.stage_code, self.message)

    @property
    def is_infrastructure(self) -> bool:
        """True if a node or a preemption ended it, not the program."""
        return self.is_disruption or self.exit_code in (138, 143)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker of a job."""

    index: int
    pod: str
    uid: str
    node: str
    phase: str
    is_leaving: bool
    is_disrupted: bool  # True if the cluster takes its pod away.
    running: bool
    restarts: int  # Restarts of the container in this pod.
    reason: str  # Why it waits, such as `Unschedulable` or `ImagePullBackOff`; empty where it does not.
    message: str
    failures: tuple[ContainerFailure, ...]
    """Failures of the container that runs or ran last, and of the one before it."""

    @property
    def holds_node(self) -> bool:
        """True if its pod takes up a node, also while its container waits to be started again."""
        return self.phase in ("Pending", "Running") and not self.is_leaving


def read_workers(kind: JobKind, pods: Sequence[ApiObject]) -> list[Worker]:
    """Return the workers of a job, in order; of two pods with one number the one that stays."""
    workers = [_worker(kind, pod) for pod in pods]
    newest = {worker.index: worker for worker in sorted(workers, key=lambda each: not each.is_leaving)}
    return [newest[index] for index in sorted(newest)]


def read_termination_message(message: str) -> TerminationMessage:
    """Read a termination message: our JSON, or the end of the log where there was none."""
    for line in reversed(message.strip().splitlines()):
        fields = log_fields(line)
        if isinstance(fields.get("exit_code"), int):
            return TerminationMessage(exit_code=fields["exit_code"], message=str(fields.get("message", "")))
        if fields.get("level") == "error" and fields.get("msg"):
            return TerminationMessage(message=str(fields["msg"]))
    return TerminationMessage()


def blame_rank(exit_code: int | None, message: str) -> int:
    """Return 0 for a failure of its own, 1 for whoever was told to stop, 2 for whoever lost another worker."""
    last = read_termination_message(message).message or message
    if exit_code in (RetryableError.exit_code, BUG) and CAUSED_BY_PEER.search(last):
        return 2
    return int(exit_code == Stopped.exit_code)


def parse_time(text: object) -> datetime:
    """Parse a time of the Kubernetes API; `NO_TIME` where there is none."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return NO_TIME


def _worker(kind: JobKind, pod: ApiObject) -> Worker:
    status, metadata = pod.get("status") or {}, pod["metadata"]
    listed = status.get("containerStatuses") or []
    container: ApiObject = next((each for each in listed if each.get("name") == kind.container), {})
    state = container.get("state") or {}
    reason, message = _waiting_reason(status, state)
    phase = str(status.get("phase", "Pending"))
    return Worker(
        index=_index(kind, pod), pod=metadata["name"], uid=metadata["uid"],
        node=str((pod.get("spec") or {}).get("nodeName", "")), phase=phase,
        is_leaving="deletionTimestamp" in metadata, is_disrupted=_is_disrupted(status),
        running=phase == "Running" and "running" in state, restarts=int(container.get("restartCount", 0)),
        reason=reason, message=message, failures=_failures(kind, pod, container),
    )  # fmt: skip


def _is_disrupted(status: ApiObject) -> bool:
    """Source: Kubernetes, "Disruptions", pod disruption conditions."""
    return str(status.get("reason", "")) in INFRASTRUCTURE or any(
        each.get("type") == "DisruptionTarget" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )


def _index(kind: JobKind, pod: ApiObject) -> int:
    text = labels(pod).get(kind.index_label, "")
    return int(text) if text.isdigit() else 0


def _waiting_reason(status: ApiObject, state: ApiObject) -> tuple[str, str]:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason", "Unschedulable")), str(condition.get("message", ""))
    details = state.get("waiting") or {}
    return str(details.get("reason", "")), str(details.get("message", ""))


def _failures(kind: JobKind, pod: ApiObject, container: ApiObject) -> tuple[ContainerFailure, ...]:
    restarts = int(container.get("restartCount", 0))
    # A container that waits to be started again still has the number of the start that has ended.
    back = 0 if "waiting" in (container.get("state") or {}) else 1
    failures = []
    for key, number in (("lastState", restarts - back), ("state", restarts)):
        end = (container.get(key) or {}).get("terminated")
        if end and end.get("exitCode") != 0:
            failures.append(_failure(kind, pod, end, number, previous=number < restarts))
    if (pod.get("status") or {}).get("phase") == "Failed" and not failures:
        failures.append(_failure(kind, pod, {}, restarts))
    return tuple(failures)


def _failure(
    kind: JobKind, pod: ApiObject, end: Any, number: int, *, previous: bool = False
) -> ContainerFailure:
    status, metadata = pod.get("status") or {}, pod["metadata"]
    # `Evicted` says more than the `Error` of the container that was killed for it.
    reason = status.get("reason") if not previous else None
    return ContainerFailure(
        index=_index(kind, pod), pod=metadata["name"], life=f"{metadata['uid']}:{number}",
        node=str((pod.get("spec") or {}).get("nodeName", "")), exit_code=end.get("exitCode"),
        reason=str(reason or end.get("reason") or "Failed"),
        message=str(end.get("message") or status.get("message") or ""), finished=parse_time(end.get("finishedAt")),
        is_disruption=not previous and _is_disrupted(status), previous=previous,
    )  # fmt: skip


def queue_message(job: ApiObject) -> str:
    """Return why a suspended job waits."""
    queue = labels(job).get(QUEUE_LABEL)
    return f"waits in queue {queue}" if queue else "suspended"


def pending_reason(workers: Sequence[Worker]) -> tuple[str, str]:
    """Return the first reason why a worker does not run, and its message."""
    pending = [each for each in workers if not each.running and each.phase in ("Pending", "Running")]
    explained = [each for each in pending if each.reason not in STARTING_REASONS] or pending
    return (explained[0].reason, explained[0].message) if explained else ("", "")


def pending_message(kind: JobKind, workers: Sequence[Worker], events: Sequence[ApiObject], nodes: int) -> str:
    """Return why an admitted job waits, with a remedy where there is one; events are oldest first."""
    running = f"{sum(worker.running for worker in workers)} of {nodes} workers run"
    reason, message = pending_reason(workers)
    warnings = [event for event in events if event.get("type") == "Warning"]
    if reason in STARTING_REASONS and warnings:
        reason, message = str(warnings[-1].get("reason", "")), str(warnings[-1].get("message", ""))
    if not workers and not warnings:
        return f"{running}; the {kind.title} has no pods yet"
    text = f"{reason}: {message}" if reason and message else reason or message or "pods are starting"
    remedy = remedy_for(text)
    return f"{running}; {' '.join(text.split())[:500]}{f'; {remedy}' if remedy else ''}"


def missing_image(workers: Sequence[Worker], events: Sequence[ApiObject]) -> str:
    """Return the message that an image is not in its registry; empty where there is none."""
    pulling = [worker for worker in workers if not worker.running and worker.reason in PULL_REASONS]
    if not pulling:
        return ""
    # The kubelet before 1.31 says only in an event why a pull failed.
    pulls = [str(event.get("message", "")) for event in events if event.get("reason") == "Failed"]
    pulls = [text for text in pulls if "pull" in text.lower() and "Error: " not in text]
    for text in (*(worker.message for worker in pulling), *pulls[-1:]):
        if NO_SUCH_IMAGE.search(text) and not REGISTRY_OUTAGE.search(text):
            return f"{pulling[0].reason}: {' '.join(text.split())[:500]}"
    return ""


def remedy_for(text: str) -> str:
    """Return the remedy for a reason; empty where none is known."""
    return next((remedy for sign, remedy in PENDING_REMEDIES.items() if sign.lower() in text.lower()), "")
