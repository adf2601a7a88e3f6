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


def test_a_launcher_has_the_same_rights() -> None:
    ours, theirs = overlay("hyperpod"), chart("hyperpod-ns-team")

    assert one(ours, "Role", "anadil-launcher")["rules"] == one(theirs, "Role", "anadil-launcher")["rules"]
    binding, other = (one(each, "RoleBinding", "anadil-launcher") for each in (ours, theirs))
    assert (binding["roleRef"], binding["subjects"]) == (other["roleRef"], other["subjects"])


@pytest.mark.parametrize("account", ["anadil-stage", "anadil-launcher"])
def test_accounts_give_the_same_token(account: str) -> None:
    tokens = [
        one(objects, "ServiceAccount", account)["automountServiceAccountToken"]
        for objects in (overlay("hyperpod"), chart("hyperpod-ns-team"))
    ]

    assert tokens[0] == tokens[1]


def test_training_pods_may_speak_to_the_same_ones() -> None:
    ours = one(overlay("laptop"), "NetworkPolicy", "anadil-jobs")
    theirs = one(chart("default"), "NetworkPolicy", "anadil-jobs")

    assert ours["spec"] == theirs["spec"]


def test_the_claim_is_the_same_but_for_the_size() -> None:
    ours = one(overlay("laptop"), "PersistentVolumeClaim", "anadil-storage")["spec"]
    theirs = one(chart("default"), "PersistentVolumeClaim", "anadil-storage")["spec"]

    assert theirs["resources"].pop("requests") == {"storage": "100Gi"}
    assert ours["resources"].pop("requests") == {"storage": "2Gi"}
    assert ours == theirs


def test_a_file_system_is_the_same_volume_and_claim() -> None:
    ours, theirs = overlay("hyperpod"), chart("hyperpod-ns-team", fsx=True)

    volume = "hyperpod-ns-team-anadil-storage"
    assert one(ours, "PersistentVolume", volume)["spec"] == one(theirs, "PersistentVolume", volume)["spec"]
    claims = [one(each, "PersistentVolumeClaim", "anadil-storage")["spec"] for each in (ours, theirs)]
    assert claims[0] == claims[1]


def test_the_recipe_is_called_the_same() -> None:
    ours, theirs = (one(each, "ConfigMap", "anadil-recipe") for each in (overlay("laptop"), chart("default")))

    assert list(ours["data"]) == list(theirs["data"]) == ["recipe.yaml"]


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
