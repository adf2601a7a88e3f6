"""A cluster in which everything is as a recipe wants it."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from tests.kit.fake_cluster import Cluster
from tests.kit.fake_server import serving

HEALTH = "sagemaker.amazonaws.com/node-health-status"
WANTED: dict[str, Any] = {
    "base": {"model": "/fsx/llama"},
    "clean": {"inputs": ["/fsx/raw"]},
    "finetune": {"inputs": ["/fsx/chats"]},
    "evaluate": {"heldout": ["/fsx/heldout.jsonl"]},
    "storage": {"root": "/fsx/az"},
    "tracking": {"uri": "off"},
    "cluster": {
        "backend": "pytorchjob",
        "namespace": "hyperpod-ns-team",
        "hyperpod": True,
        "instance": "p5.48xlarge",
        "nodes": 2,
        "queue": "hyperpod-ns-team-localqueue",
        "priority": "training-priority",
        "service_account": "anadil-job",
        "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/anadil/{stage}:{version}",
        "volumes": [{"claim": "fsx", "path": "/fsx"}],
        "work": "/fsx/work",
        "secrets": {"hub": ["HF_TOKEN"]},
        "notifications": "alerts",
        "resources": {"pretrain": {"gpus": 8}},
        "tolerations": [{"key": "nvidia.com/gpu"}],
    },
}


@pytest.fixture
def wanted() -> Recipe:
    return parse_recipe(json.dumps(WANTED), "recipe")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    served = Cluster()
    fill(served)
    with serving(served, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
        monkeypatch.setenv("NO_PROXY", "*")
        yield served


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def node(
    health: str = "Schedulable", gpus: int = 8, efa: int = 32, instance: str = "ml.p5.48xlarge", **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"labels": {HEALTH: health, "node.kubernetes.io/instance-type": instance}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], **spec},
        "status": {
            "allocatable": {"cpu": "180", "nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": str(efa)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def fill(cluster: Cluster) -> None:
    """Everything that `WANTED` asks for."""
    space = "/api/v1/namespaces/hyperpod-ns-team"
    cluster.put(
        space,
        metadata={"labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        status={"phase": "Active"},
    )
    cluster.serve_group("kubeflow.org", "v1", "pytorchjobs", "pytorchjobs/status")
    cluster.serve_group("kueue.x-k8s.io", "v1beta1", "localqueues")
    cluster.put(
        "/apis/apps/v1/deployments/training-operator",
        metadata={"namespace": "kubeflow", "labels": {"control-plane": "kubeflow-training-operator"}},
        spec={"template": {"spec": {"containers": [{"image": "kubeflow/training-operator:v1.8.1"}]}}},
        status={"readyReplicas": 1},
    )
    queues = "/apis/kueue.x-k8s.io/v1beta1"
    cluster.put(
        f"{queues}/namespaces/hyperpod-ns-team/localqueues/hyperpod-ns-team-localqueue",
        status={"pendingWorkloads": 3, "conditions": [{"type": "Active", "status": "True"}]},
    )
    cluster.put(f"{queues}/workloadpriorityclasses/training-priority")
    cluster.put(f"{space}/serviceaccounts/anadil-job")
    cluster.put(
        f"{space}/persistentvolumeclaims/fsx",
        spec={"accessModes": ["ReadWriteMany"], "volumeName": "fsx-volume", "storageClassName": "fsx-sc"},
        status={"phase": "Bound", "capacity": {"storage": "1200Gi"}},
    )
    cluster.put("/api/v1/persistentvolumes/fsx-volume", spec={"csi": {"driver": "fsx.csi.aws.com"}})
    cluster.put(f"{space}/secrets/hub", data={"HF_TOKEN": "aGZfY2FuYXJ5"})
    cluster.put(f"{space}/secrets/alerts", data={"ANADIL_SNS_TOPIC": "YXJu"})
    cluster.put("/api/v1/nodes/hyperpod-i-1", **node())
    cluster.put("/api/v1/nodes/hyperpod-i-2", **node())
