"""Why a job does not run yet, in words, with what can be done about it."""

import re
from collections.abc import Sequence

from anadil.launch.kinds import QUEUE_LABEL, ApiObject, JobKind, labels
from anadil.launch.kubernetes.api.pods import Worker

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
"""Words of a reason or a message -> remedy. Source: kubelet, scheduler and admission messages."""
NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|name unknown|(repository|manifest)\b.* does not exist|MANIFEST_UNKNOWN|NAME_UNKNOWN",
    re.IGNORECASE,
)
"""In the words of a pull: the registry answers, and has no such image. Source: containerd, CRI-O, Docker Hub, ECR;
distribution-spec, error codes."""
REGISTRY_OUTAGE = re.compile(
    r"no such host|timeout|timed out|connection (refused|reset)|\b5\d\d\b|EOF|x509|toomanyrequests",
    re.IGNORECASE,
)
"""In the words of a pull: the registry is not reached, which passes."""
PULL_REASONS = ("ErrImagePull", "ImagePullBackOff")
STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing", ""})
"""Reasons of a pod that is on its way; only an event says why it does not get on."""


def queue_message(job: ApiObject) -> str:
    """The reason that a suspended job waits."""
    queue = labels(job).get(QUEUE_LABEL)
    return f"waits in queue {queue}" if queue else "suspended"


def pending_reason(workers: Sequence[Worker]) -> tuple[str, str]:
    """The first reason why a worker does not run, and its message."""
    waiting = [worker for worker in workers if not worker.running and worker.phase in ("Pending", "Running")]
    explained = [worker for worker in waiting if worker.reason not in STARTING_REASONS] or waiting
    return (explained[0].reason, explained[0].message) if explained else ("", "")


def pending_message(kind: JobKind, workers: Sequence[Worker], events: Sequence[ApiObject], nodes: int) -> str:
    """The reason that an admitted job waits, with a remedy where there is one.

    Args:
        kind: Of the job.
        workers: Its workers.
        events: Of the job and of a worker that waits, oldest first.
        nodes: Workers that it asks for.
    """
    running = sum(worker.running for worker in workers)
    reason, message = pending_reason(workers)
    warnings = [event for event in events if event.get("type") == "Warning"]
    if reason in STARTING_REASONS and warnings:
        reason, message = str(warnings[-1].get("reason", "")), str(warnings[-1].get("message", ""))
    if not workers and not warnings:
        return f"{running} of {nodes} workers run; the {kind.title} has no pods yet"
    text = f"{reason}: {message}" if reason and message else reason or message or "pods are starting"
    remedy = remedy_for(text)
    return (
        f"{running} of {nodes} workers run; {' '.join(text.split())[:500]}{f'; {remedy}' if remedy else ''}"
    )


def missing_image(workers: Sequence[Worker], events: Sequence[ApiObject]) -> str:
    """The message that an image is not in its registry; empty where there is none.

    Args:
        workers: The workers.
        events: Of one that waits, oldest first; the kubelet before 1.31 says only there why a pull failed.
    """
    waiting = [worker for worker in workers if not worker.running and worker.reason in PULL_REASONS]
    if not waiting:
        return ""
    pulls = [str(event.get("message", "")) for event in events if event.get("reason") == "Failed"]
    pulls = [text for text in pulls if "pull" in text.lower() and "Error: " not in text]
    for text in (*(worker.message for worker in waiting), *pulls[-1:]):
        if NO_SUCH_IMAGE.search(text) and not REGISTRY_OUTAGE.search(text):
            return f"{waiting[0].reason}: {' '.join(text.split())[:500]}"
    return ""


def remedy_for(text: str) -> str:
    """The remedy for a reason; empty where none is known."""
    return next((remedy for sign, remedy in PENDING_REMEDIES.items() if sign.lower() in text.lower()), "")
