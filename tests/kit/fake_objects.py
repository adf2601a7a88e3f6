"""Objects of the fake Kubernetes API: conditions, labels, patches, a kubeconfig."""

import uuid
from datetime import UTC, datetime
from typing import Any

NAMESPACE = "team"
TOKEN = "canary-token-4711"


def set_condition(status: dict[str, Any], kind: str, value: str, message: str = "") -> None:
    """Conditions stay in the list; one that is not there is not added as False."""
    listed = status.setdefault("conditions", [])
    for condition in listed:
        if condition["type"] == kind:
            condition["status"] = value
            return
    if value == "True":
        listed.append({"type": kind, "status": value, "reason": f"PyTorchJob{kind}", "message": message})


def remove_condition(status: dict[str, Any], kind: str) -> None:
    status["conditions"] = [each for each in status["conditions"] if each["type"] != kind]


def end(status: dict[str, Any], kind: str, message: str) -> None:
    set_condition(status, "Running", "False")
    set_condition(status, kind, "True", message)
    status["completionTime"] = now()


def new_pod(job: str, index: int, container: str) -> dict[str, Any]:
    """A worker as the operator makes it."""
    labels = {
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/replica-index": str(index),
        "training.kubeflow.org/replica-type": "worker",
    }
    state = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {"name": f"{job}-worker-{index}", "uid": str(uuid.uuid4()), "labels": labels},
        "spec": {"nodeName": f"node-{index}"},
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": container, "restartCount": 0, "state": state}],
        },
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def number(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"]["training.kubeflow.org/replica-index"])


def life(pod: dict[str, Any], back: int = 0) -> str:
    """The start of a pod's container that writes now, or one before."""
    return f"{pod['metadata']['uid']}:{pod['status']['containerStatuses'][0]['restartCount'] - back}"


def fits(thing: dict[str, Any], query: dict[str, str], plural: str = "") -> bool:
    wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
    labels = thing["metadata"].get("labels", {})
    return bool(thing.get("plural", "") == plural and wanted.items() <= labels.items())


def merge(target: dict[str, Any], change: dict[str, Any]) -> None:
    """JSON merge patch. Source: RFC 7396."""
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": NAMESPACE}}
        ],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
    }
