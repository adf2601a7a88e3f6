"""The chart and manifests/ are two ways to the same objects."""

from typing import Any

import pytest

from tests.charts.chart import render
from tests.manifests.kustomized import Object, one, overlay

FSX = {
    "fileSystemId": "fs-0123456789abcdef0",
    "dnsName": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
    "mountName": "0abcdefg",
}


def chart(namespace: str, *, fsx: bool = False) -> list[Object]:
    """What the chart makes without an MLflow of its own."""
    values: dict[str, Any] = {
        "mlflow": {"enabled": False},
        "recipe": {"language": "az"},
        "storage": {"enabled": True, **({"size": "1200Gi", "fsx": FSX} if fsx else {})},
    }
    return render(values, namespace)


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [
        ("Role", "anadil-launcher", "rules"),
        ("RoleBinding", "anadil-launcher", "roleRef"),
        ("RoleBinding", "anadil-launcher", "subjects"),
        ("ServiceAccount", "anadil-stage", "automountServiceAccountToken"),
        ("ServiceAccount", "anadil-launcher", "automountServiceAccountToken"),
        ("PersistentVolume", "hyperpod-ns-team-anadil-storage", "spec"),
        ("PersistentVolumeClaim", "anadil-storage", "spec"),
    ],
)
def test_an_object_of_a_team_on_hyperpod_is_the_same(kind: str, name: str, field: str) -> None:
    ours, theirs = overlay("hyperpod"), chart("hyperpod-ns-team", fsx=True)

    assert one(ours, kind, name)[field] == one(theirs, kind, name)[field]


def test_the_policy_and_the_claim_are_the_same_but_for_the_size() -> None:
    ours, theirs = overlay("laptop"), chart("default")
    claims = [one(each, "PersistentVolumeClaim", "anadil-storage")["spec"] for each in (ours, theirs)]

    assert (
        one(ours, "NetworkPolicy", "anadil-jobs")["spec"]
        == one(theirs, "NetworkPolicy", "anadil-jobs")["spec"]
    )
    sizes = [each["resources"].pop("requests")["storage"] for each in claims]
    assert sizes == ["2Gi", "100Gi"]
    assert claims[0] == claims[1]


def test_the_launcher_s_pod_is_the_same() -> None:
    values = {
        "recipe": {"language": "az"},
        "storage": {"enabled": True},
        "launch": {
            "enabled": True,
            "inputs": {
                "tokens": {"az": "/data/run/tokens/az", "en": "/data/run/tokens/en"},
                "tokenizer": "/data/run/tokenizer",
            },
        },
    }
    [theirs] = [each for each in render(values, "anadil") if each["metadata"]["name"].endswith("-launch")]
    ours = one(overlay("launch"), "Job", "anadil-launch")

    assert ours["spec"]["podFailurePolicy"] == theirs["spec"]["podFailurePolicy"]
    pods = [each["spec"]["template"]["spec"] for each in (ours, theirs)]
    assert pods[0]["serviceAccountName"] == pods[1]["serviceAccountName"]
    assert pods[0]["securityContext"] == pods[1]["securityContext"]
    containers = [pod["containers"][0] for pod in pods]
    assert {*containers[0]["args"]} == {*containers[1]["args"]} - {"--backend=pytorchjob"}
    assert containers[0]["resources"] == containers[1]["resources"]
    assert containers[0]["securityContext"] == containers[1]["securityContext"]
    mounts = [sorted(each["mountPath"] for each in container["volumeMounts"]) for container in containers]
    assert mounts[0] == mounts[1]
