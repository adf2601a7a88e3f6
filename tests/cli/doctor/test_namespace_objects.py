"""Queue, claims, accounts, Secrets, nodes and images, as a recipe names them."""

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
QUEUES = "/apis/kueue.x-k8s.io/v1beta1/namespaces/hyperpod-ns-team/localqueues"
QUEUE = f"{QUEUES}/hyperpod-ns-team-localqueue"
CLAIM = f"{SPACE}/persistentvolumeclaims/fsx"


def test_a_queue_that_is_not_active_says_why(cluster: Cluster, wanted: Recipe) -> None:
    reason = {"type": "Active", "status": "False", "message": "Can't submit new workloads to clusterQueue"}
    cluster.objects[QUEUE]["status"] = {"conditions": [reason]}

    check = line(wanted, "queue")

    assert check.status == "failed"
    assert "Can't submit new workloads" in check.detail


@pytest.mark.parametrize(
    ("override", "name", "status", "words"),
    [
        ("queue=team", "queue", "failed", "set cluster.queue to one of hyperpod-ns-team-localqueue"),
        ("queue=null", "queue", "skipped", "set cluster.queue: hyperpod-ns-team-localqueue"),
        ("priority=training", "priority", "failed", "set cluster.priority to one of training-priority"),
        ("service_account=other", "service account", "failed", "create serviceaccount other"),
        ("image=anadil/{stage}:1", "images", "failed", "anadil/clean:1 names no registry"),
    ],
)
def test_what_the_recipe_names_and_the_cluster_lacks_is_answered_with_what_is_here(
    cluster: Cluster, wanted: Recipe, override: str, name: str, status: str, words: str
) -> None:
    check = line(again(wanted, f"cluster.{override}"), name)

    assert check.status == status
    assert words in f"{check.detail} {check.remedy}"


def test_a_queue_without_kueue_fails(cluster: Cluster, wanted: Recipe) -> None:
    del cluster.objects["/apis/kueue.x-k8s.io"]

    assert "is not served" in line(wanted, "queue").detail


def test_many_nodes_need_a_claim_that_all_can_mount(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects[CLAIM]["spec"]["accessModes"] = ["ReadWriteOnce"]

    check = line(wanted, "claim fsx")

    assert check.status == "failed"
    assert check.detail == "ReadWriteOnce, but 2 nodes mount it"


def test_one_node_may_have_a_claim_of_its_own(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects[CLAIM]["spec"]["accessModes"] = ["ReadWriteOnce"]

    assert line(again(wanted, "cluster.nodes=1"), "claim fsx").status == "passed"


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


def test_a_volume_of_one_node_is_refused_where_the_pods_may_be_on_two(
    cluster: Cluster, wanted: Recipe
) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = [small_node(), small_node()]
    cluster.objects[CLAIM]["spec"]["accessModes"] = ["ReadWriteOnce"]

    assert line(again(wanted, *CPUS), "claim fsx").status == "failed"


def test_two_pods_of_four_gpus_share_a_machine_of_eight(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = [node(efa=0)]
    recipe = again(wanted, "cluster.resources={pretrain: {gpus: 4, cpu: 8, memory: 64Gi}}")

    assert line(recipe, "nodes").status == "passed"
    assert line(recipe, "GPUs").detail == "1 node can hold 2 times 4 nvidia.com/gpu allocatable"


def test_checkpoints_do_not_go_to_a_mountpoint_of_s3(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/persistentvolumes/fsx-volume"]["spec"]["csi"]["driver"] = "s3.csi.aws.com"

    assert "cannot rename or append" in line(wanted, "claim fsx").detail


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


def test_the_role_of_a_service_account_is_told(cluster: Cluster, wanted: Recipe) -> None:
    role = "arn:aws:iam::123456789012:role/anadil"
    account = cluster.objects[f"{SPACE}/serviceaccounts/anadil-job"]
    account["metadata"]["annotations"] = {"eks.amazonaws.com/role-arn": role}

    assert line(wanted, "service account").detail == f"anadil-job takes {role} (IRSA)"


def test_a_secret_without_its_key_fails(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects[f"{SPACE}/secrets/hub"]["data"] = {"TOKEN": "eA=="}
    cluster.objects[f"{SPACE}/secrets/alerts"]["data"] = {}

    assert line(wanted, "secret hub").detail == "lacks HF_TOKEN"
    assert line(wanted, "secret alerts").detail == "lacks one of ANADIL_SLACK_WEBHOOK, ANADIL_SNS_TOPIC"


def test_a_missing_secret_says_how_to_make_it(cluster: Cluster, wanted: Recipe) -> None:
    del cluster.objects[f"{SPACE}/secrets/hub"]

    check = line(wanted, "secret hub")

    assert check.remedy == (
        "kubectl -n hyperpod-ns-team create secret generic hub --from-literal=HF_TOKEN=..."
    )


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


def test_the_health_of_nodes_is_counted(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/nodes"]["items"].append(node("UnschedulablePendingReboot"))

    assert line(wanted, "node health").detail == "2 Schedulable, 1 UnschedulablePendingReboot"


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
