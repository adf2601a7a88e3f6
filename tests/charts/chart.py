"""The chart rendered with the values that people install it with."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/anadil"
RELEASE, NAMESPACE = "anadil", "training"
Object = dict[str, Any]

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "storage": {"storage": {"enabled": True, "storageClassName": "gp3"}},
    "postgres and s3": {
        "fullnameOverride": "az",
        "labels": {"team": "nlp"},
        "images": {
            "registry": "111122223333.dkr.ecr.eu-west-1.amazonaws.com/",
            "pullSecrets": ["registry"],
            "mlflow": {"digest": f"sha256:{'a' * 64}"},
            "tools": {"registry": "ghcr.io/leyla", "tag": "edge"},
        },
        "serviceAccounts": {
            "mlflow": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/mlflow"}},
            "stage": {"create": False, "name": "trainer"},
        },
        "mlflow": {
            "replicas": 2,
            "allowedHosts": ["mlflow.example.com"],
            "corsAllowedOrigins": ["https://example.com"],
            "database": {"existingSecret": "mlflow-database", "upgrade": True},
            "artifacts": {"uri": "s3://bucket/mlflow", "endpointUrl": "http://minio.storage:9000", "existingSecret": "s3"},
            "auth": {"enabled": True, "existingSecret": "mlflow-login"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "cpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "system",
            "podAnnotations": {"a": "b"},
            "extraEnv": [{"name": "A", "value": "b"}],
        },
    },
    "login of one's own": {"mlflow": {"auth": {"existingSecret": "mlflow-login"}}},
    "no login": {"mlflow": {"auth": {"enabled": False}}},
    "watch a claim and a bucket": {
        "storage": {"enabled": True},
        "watch": {"enabled": True, "places": ["/data/az", "s3://bucket/ja"], "extraEnv": [{"name": "A", "value": "b"}]},
    },
    "kubeflow with schedule": {
        "recipe": {"language": "az", "clean": {"inputs": ["s3://bucket/raw/*.jsonl"]}},
        "launchers": [{"name": "default-editor", "namespace": "leyla"}],
        "kubeflow": {
            "enabled": True,
            "schedule": "0 3 * * 0",
            "runNamespace": "leyla",
            "runServiceAccount": "default-editor",
            "token": True,
        },
        "queue": {"enabled": True, "clusterQueue": "gpus"},
        "clean": {"engines": ["job", "ray"]},
    },
    "kubeflow without schedule": {"recipe": "language: az\n", "kubeflow": {"enabled": True}},
    "monitoring": {
        "monitoring": {
            "labels": {"release": "prometheus"},
            "podMonitor": {"enabled": True},
            "serviceMonitor": {"enabled": True},
            "rules": {"enabled": True, "labels": {"team": "nlp"}},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "anadil"}},
        },
        "mlflow": {"auth": {"enabled": True, "existingSecret": "mlflow-login"}},
    },
    "hyperpod with fsx": {
        "recipe": {"language": "az", "tracking": {"experiment": "az"}},
        "jobs": {"namespace": "hyperpod-ns-nlp", "kinds": ["pytorchjob", "trainjob"]},
        "launchers": [{"name": "pipeline-runner", "namespace": "kubeflow"}],
        "storage": {
            "enabled": True,
            "size": "1200Gi",
            "fsx": {
                "fileSystemId": "fs-0123456789abcdef0",
                "dnsName": "fs-0123456789abcdef0.fsx.eu-west-1.amazonaws.com",
                "mountName": "abcdefgh",
            },
        },
    },
    "launch": {
        "images": {"pullSecrets": ["registry"]},
        "recipe": {"language": "az"},
        "storage": {"enabled": True},
        "launch": {
            "enabled": True,
            "inputs": {"corpus": "/data/run/corpus", "tokenizer": "/data/run/tokenizer"},
            "out": "/data/run/model",
            "extraArgs": ["--run=7"],
        },
    },
    "vllm from s3": {
        "images": {"registry": "registry.example"},
        "serving": {"enabled": True, "name": "az", "model": "s3://bucket/adapter/0123/merged", "extraArgs": ["--seed=1"],
                    "nodeSelector": {"gpu": "h100"}, "extraEnv": [{"name": "A", "value": "b"}]},
    },
    "vllm from the claim": {
        "storage": {"enabled": True},
        "serving": {"enabled": True, "model": "/data/anadil/model/0123", "gpus": 2, "chatTemplate": False},
    },
    "kserve": {
        "serving": {"enabled": True, "kind": "kserve", "name": "az", "model": "s3://bucket/adapter/0123/merged"},
    },
    "bare": {
        "mlflow": {"enabled": False},
        "trackingUri": "https://mlflow.example.com",
        "networkPolicy": {"enabled": False},
        "tests": {"enabled": False},
    },
}  # fmt: skip
"""What is tried, by name."""
WORKLOADS = ("Deployment", "Job", "CronJob", "Pod")


LOGIN = "anadil/templates/login.yaml"
"""What makes the Secret of MLflow's login: another one each time where no cluster keeps it."""


def rendered(values: dict[str, Any], namespace: str = NAMESPACE, *, upgrade: bool = False) -> dict[str, str]:
    """Template -> what Helm makes of it, where there is no cluster to look at."""
    with helm_python.Chart.load(CHART) as chart:
        return dict(chart.render(values, name=RELEASE, namespace=namespace, is_upgrade=upgrade))


@functools.cache
def _texts(values: str, namespace: str, *, upgrade: bool) -> str:
    made = rendered(json.loads(values), namespace, upgrade=upgrade)
    return json.dumps(
        made | {LOGIN: re.sub(r"(_PASSWORD|_KEY): \S+", r"\1: bWFkZS1ieS10aGUtY2hhcnQ=", made[LOGIN])}
    )


def texts(values: dict[str, Any], namespace: str = NAMESPACE, *, upgrade: bool = False) -> dict[str, str]:
    rendered: dict[str, str] = json.loads(_texts(json.dumps(values), namespace, upgrade=upgrade))
    return rendered


def render(values: dict[str, Any], namespace: str = NAMESPACE, *, upgrade: bool = False) -> list[Object]:
    return [
        document
        for name, text in sorted(texts(values, namespace, upgrade=upgrade).items())
        if name.endswith(".yaml")
        for document in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if document
    ]


def identity(item: Object) -> str:
    metadata = item["metadata"]
    return f"{item['kind']} {metadata.get('namespace', '-')}/{metadata['name']}"


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of a kind whose name ends so."""
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(name)]
    assert len(found) == 1, [identity(item) for item in found]
    return found[0]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Of everything that runs: its identity, and metadata and spec of its pods."""
    for item in objects:
        if item["kind"] not in WORKLOADS:
            continue
        holder = item
        if item["kind"] == "CronJob":
            holder = item["spec"]["jobTemplate"]
        if item["kind"] != "Pod":
            holder = holder["spec"]["template"]
        yield identity(item), holder["metadata"], holder["spec"]


def environment(container: Object) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", [])}
