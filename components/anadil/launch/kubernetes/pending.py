"""Reasons why a job does not run yet, with their remedies."""

import re
from collections.abc import Sequence

from anadil.launch.kinds import QUEUE_LABEL, ApiObject, JobKind, labels
from anadil.launch.kubernetes.pods import Worker

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
    r"not found|manifest unknown|name unknown|(repository|manifest)\b.* does not exist|MANIFEST_UNKNOWN|NAME_UNKNOWN",
    re.IGNORECASE,
)
# A pull's message where the registry is not reached, which passes.
REGISTRY_OUTAGE = re.compile(
    r"no such host|timeout|timed out|connection (refused|reset)|\b5\d\d\b|EOF|x509|toomanyrequests",
    re.IGNORECASE,
)
PULL_REASONS = ("ErrImagePull", "ImagePullBackOff")
# Reasons of a pod that is on its way; only an event says why it does not get on.
STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing", ""})


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
    """Return why an admitted job of so many nodes waits, with a remedy where there is one.

    The events are those of the job and of a worker that waits, oldest first.
    """
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
