from collections.abc import Callable
from typing import Any

import pytest

from anadil.core.stages import IMAGES
from anadil.launch.kubernetes.checks import run_cluster_checks
from anadil.recipe.sections import Recipe
from tests.cli.doctor.conftest import node
from tests.cli.doctor.lines import line, names
from tests.kit.fake_cluster import Cluster
from tests.kit.harness import again

SPACE = "/api/v1/namespaces/hyperpod-ns-team"
CLAIM = f"{SPACE}/persistentvolumeclaims/fsx"


def unserve(cluster: Cluster) -> None:
    del cluster.objects["/apis/kubeflow.org/v1"]
    del cluster.objects["/apis/kubeflow.org"]
    cluster.serve_group("trainer.kubeflow.org", "v1alpha1", "trainjobs")


def put(path: str, *keys: Any) -> Callable[[Cluster], None]:
    """A change: the last of the keys is the value of the others, in the object of a path."""
    *parents, last, value = keys

    def change(cluster: Cluster) -> None:
        found: Any = cluster.objects[path]
        for key in parents:
            found = found[key]
        found[last] = value

    return change


INACTIVE = {"type": "Active", "status": "False", "message": "Can't submit new workloads to clusterQueue"}
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/anadil"}
OPERATOR, ACCOUNT = "/apis/apps/v1/deployments/training-operator", f"{SPACE}/serviceaccounts/anadil-job"
QUEUE = "/apis/kueue.x-k8s.io/v1beta1/namespaces/hyperpod-ns-team/localqueues/hyperpod-ns-team-localqueue"
CONTAINERS = ("spec", "template", "spec", "containers")
LINES: list[tuple[Callable[[Cluster], object], tuple[str, ...], str, str, str]] = [
    (lambda _: None, ("queue=team",), "queue", "failed", "set cluster.queue to one of hyperpod-ns-team-localqueue"),
    (lambda _: None, ("queue=null",), "queue", "skipped", "set cluster.queue: hyperpod-ns-team-localqueue"),
    (put(QUEUE, "status", {"conditions": [INACTIVE]}), (), "queue", "failed", "Can't submit new workloads"),
    (lambda made: made.objects.pop("/apis/kueue.x-k8s.io"), (), "queue", "failed", "is not served"),
    (lambda _: None, ("priority=training",), "priority", "failed", "set cluster.priority to one of training-priority"),
    (lambda _: None, ("service_account=other",), "service account", "failed", "create serviceaccount other"),
    (put(ACCOUNT, "metadata", "annotations", ROLE), (), "service account", "passed", "role/anadil (IRSA)"),
    (lambda _: None, ("image=anadil/{stage}:1",), "images", "failed", "anadil/clean:1 names no registry"),
    (lambda _: None, ("namespace=team",), "namespace", "failed", "begin with hyperpod"),
    (lambda _: None, ("namespace=null", "hyperpod=false"), "namespace", "failed", "team: there is none"),
    (lambda made: setattr(made, "version", ("1", "28+", "v1.28.9")), (), "kubernetes", "passed", "v1.28.9"),
    (lambda made: setattr(made, "version", ("1", "27", "v1.27.1")), (), "kubernetes", "failed", "1.28 to 1.34"),
    (lambda made: setattr(made, "version", ("one", "x", "y")), (), "kubernetes", "failed", "cannot be read"),
    (unserve, (), "job API", "failed", "set cluster.backend: trainjob"),
    (put(OPERATOR, "status", {}), (), "training operator", "failed", "kubeflow/training-operator ("),
    (put(OPERATOR, *CONTAINERS, 0, "image", "x:v1.9.4"), (), "training operator", "passed", "v1.8.1"),
    (put(CLAIM, "spec", "accessModes", ["ReadWriteOnce"]), (), "claim fsx", "failed", "but 2 nodes mount it"),
    (put(CLAIM, "spec", "accessModes", ["ReadWriteOnce"]), ("nodes=1",), "claim fsx", "passed", "bound"),
    (
        put("/api/v1/persistentvolumes/fsx-volume", "spec", "csi", "driver", "s3.csi.aws.com"), (),
        "claim fsx", "failed", "cannot rename or append",
    ),
    (put(f"{SPACE}/secrets/hub", "data", {"TOKEN": "eA=="}), (), "secret hub", "failed", "lacks HF_TOKEN"),
    (put(f"{SPACE}/secrets/alerts", "data", {}), (), "secret alerts", "failed", "lacks one of ANADIL_SLACK_WEBHOOK"),
    (
        lambda made: made.objects.pop(f"{SPACE}/secrets/hub"), (), "secret hub", "failed",
        "kubectl -n hyperpod-ns-team create secret generic hub --from-literal=HF_TOKEN=...",
    ),
    (
        lambda made: made.objects["/api/v1/nodes"]["items"].append(node("UnschedulablePendingReboot")), (),
        "node health", "passed", "2 Schedulable, 1 UnschedulablePendingReboot",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "overrides", "name", "status", "words"), LINES)
def test_what_the_recipe_names_and_the_cluster_lacks_is_answered_with_what_is_here(
    cluster: Cluster,
    wanted: Recipe,
    change: Callable[[Cluster], object],
    overrides: tuple[str, ...],
    name: str,
    status: str,
    words: str,
) -> None:
    change(cluster)

    check = line(again(wanted, *(f"cluster.{each}" for each in overrides)), name)

    assert check.status == status
    assert words in f"{check.detail} {check.remedy}"


CPUS = ("cluster.instance=null", "cluster.queue=null", "cluster.priority=null", "cluster.resources={}")
"""A recipe without GPUs: two pods of half a CPU and 2 GiB."""


def small_node(cpu: str = "2", memory: str = "8000000Ki") -> dict[str, Any]:
    made = node()
    made["status"]["allocatable"] = {"cpu": cpu, "memory": memory, "pods": "110"}
    return made


def test_two_pods_on_cpus_share_a_node_and_its_volume(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = [small_node()]
    cluster.objects[CLAIM]["spec"]["accessModes"] = ["ReadWriteOnce"]
    recipe = again(wanted, *CPUS)

    nodes = line(recipe, "nodes")
    assert (nodes.status, nodes.detail) == (
        "passed",
        "1 of 1 nodes take such pods, and have room for 2 that share them",
    )
    assert line(recipe, "claim fsx").status == "passed"
    assert line(again(recipe, "cluster.nodes=5"), "nodes").status == "failed"


@pytest.mark.parametrize(("cpu", "memory"), [("900m", "8Gi"), ("8", "3Gi")])
def test_a_node_that_is_too_small_for_both_pods_is_told(
    cluster: Cluster, wanted: Recipe, cpu: str, memory: str
) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = [small_node(cpu, memory)]
    cluster.objects[CLAIM]["spec"]["accessModes"] = ["ReadWriteOnce"]
    recipe = again(wanted, *CPUS)

    assert line(recipe, "nodes").detail == "1 of 1 nodes take such pods, 2 needed"
    assert line(recipe, "claim fsx").status == "failed"
    cluster.objects["/api/v1/nodes"]["items"] = [small_node(), small_node()]
    assert line(recipe, "claim fsx").status == "failed"


def test_two_pods_of_four_gpus_share_a_machine_of_eight(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = [node(efa=0)]
    recipe = again(wanted, "cluster.resources={pretrain: {gpus: 4, cpu: 8, memory: 64Gi}}")

    assert line(recipe, "nodes").status == "passed"
    assert line(recipe, "GPUs").detail == "1 node can hold 2 times 4 nvidia.com/gpu allocatable"


@pytest.mark.parametrize(
    ("spec", "classes", "status", "detail"),
    [
        ({}, [], "failed", "no class is the default"),
        ({"storageClassName": "fsx-sc"}, [], "failed", "there is no storage class fsx-sc"),
        ({"storageClassName": "gp3"}, [{"volumeBindingMode": "Immediate"}], "failed", "has made no volume yet"),
        ({"storageClassName": "gp3"}, [{"volumeBindingMode": "WaitForFirstConsumer"}], "passed", "as soon as a pod"),
        ({"storageClassName": "", "volumeName": "pv"}, [], "failed", "waits for its volume"),
    ],
)  # fmt: skip
def test_a_claim_that_is_not_bound_says_why(
    cluster: Cluster, wanted: Recipe, spec: Any, classes: list[Any], status: str, detail: str
) -> None:
    cluster.put(CLAIM, spec={"accessModes": ["ReadWriteMany"], **spec}, status={"phase": "Pending"})
    cluster.objects["/apis/storage.k8s.io/v1/storageclasses"] = {
        "items": [{"metadata": {"name": "gp3"}, **each} for each in classes]
    }

    check = line(wanted, "claim fsx")

    assert check.status == status
    assert detail in check.detail


@pytest.mark.parametrize(
    ("second", "name", "detail"),
    [
        (node("UnschedulablePendingReplacement"), "nodes", "1 not healthy"),
        (node(unschedulable=True), "nodes", "1 cordoned"),
        (node(taints=[{"key": "team", "effect": "NoSchedule"}]), "nodes", "1 with the taint team"),
        (node() | {"status": {}}, "nodes", "1 not ready"),
        (node(instance="m5.large"), "nodes", "1 of another type than p5.48xlarge"),
        (node(gpus=4), "GPUs", "1 node with 8 or more nvidia.com/gpu allocatable, 2 needed"),
        (node(efa=0), "EFA", "1 node with 32 or more vpc.amazonaws.com/efa allocatable, 2 needed"),
    ],
)
def test_too_few_nodes_say_why(cluster: Cluster, wanted: Recipe, second: Any, name: str, detail: str) -> None:
    cluster.objects["/api/v1/nodes"]["items"][1] = second

    check = line(wanted, name)

    assert check.status == "failed"
    assert detail in check.detail


def test_one_node_needs_no_efa(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = [node(efa=0)]

    checks = run_cluster_checks(again(wanted, "cluster.nodes=1"))

    assert names(checks, "failed") == set()
    assert "EFA" in names(checks, "skipped")


def test_images_by_digest_need_no_remedy(cluster: Cluster, wanted: Recipe) -> None:
    digest = "sha256:" + "0" * 64
    images = set(IMAGES.values())
    pins = [f"cluster.digests.{image}={digest}" for image in images]

    loose = line(wanted, "images")
    pinned = line(again(wanted, *pins), "images")

    assert (loose.status, pinned.status) == ("passed", "passed")
    assert f"and {len(images) - 1} more go by tag" in loose.detail
    assert "cluster.digests" in loose.remedy
    assert pinned.remedy == ""
