from typing import Any

import pytest

from anadil.launch.job import HOME
from anadil.launch.kubernetes.clean_pods import CleanPods, indexed_job, ray_cluster
from anadil.recipe.sections import Recipe
from tests.kit.crds import RAYCLUSTER, mistakes
from tests.kit.kubernetes_schemas import VERSIONS, validate
from tests.kit.restricted import violations

RECIPE = Recipe.model_validate(
    {
        "cluster": {
            "volumes": [{"claim": "shared", "path": "/data"}],
            "work": "/data/work",
            "queue": "cpu",
            "service_account": "stage",
            "secrets": {"keys": ["AWS_ACCESS_KEY_ID"]},
            "pull_secrets": ["registry"],
            "resources": {"clean": {"cpu": "64", "memory": "256Gi"}},
        }
    }
)
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "driver", "uid": "4711"}
PODS = CleanPods(recipe=RECIPE, name="anadil-clean-map-shard-0123456789", owners=(OWNER,), namespace="team")


def job() -> dict[str, Any]:
    return indexed_job(PODS, "/data/work/tasks", "ab" * 32, 4_000, 100)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field_of_the_job(version: str) -> None:
    validate(job(), version)

    broken = job()
    broken["spec"]["backoffLimitPerIndexes"] = 1
    with pytest.raises(Exception, match="backoffLimitPerIndexes"):
        validate(broken, version)


def test_a_pod_that_is_evicted_costs_no_retry_and_one_that_knows_what_is_wrong_ends_the_job() -> None:
    spec = job()["spec"]

    evicted, known = spec["podFailurePolicy"]["rules"]
    assert evicted == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert known["action"] == "FailJob"
    assert known["onExitCodes"]["containerName"] == spec["template"]["spec"]["containers"][0]["name"]
    assert {2, 3, 4, 5, 70} <= set(known["onExitCodes"]["values"])
    assert not {137, 138, 143} & set(known["onExitCodes"]["values"])
    # Both asked for by the API server where there is a limit for each index.
    assert (spec["completionMode"], spec["template"]["spec"]["restartPolicy"]) == ("Indexed", "Never")


@pytest.mark.parametrize(
    ("engine", "image"), [("processes", "clean"), ("job", "clean-ray"), ("ray", "clean-ray")]
)
def test_pods_run_the_image_that_holds_their_engine(engine: str, image: str) -> None:
    digest = f"sha256:{'a' * 64}"
    asked = {"clean": {"engine": engine}, "cluster": {"digests": {image: digest}}}
    pods = CleanPods(recipe=Recipe.model_validate(asked), name="anadil-clean")

    made = (
        ray_cluster(pods, 2)["spec"] if engine == "ray" else indexed_job(pods, "/tasks", "ab", 4, 2)["spec"]
    )

    groups = [made["headGroupSpec"], *made["workerGroupSpecs"]] if engine == "ray" else [made]
    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups}
    assert images == {f"anadil/{image}@{digest}"}
    assert Recipe.model_validate(asked).image_of("tokenizer").startswith("anadil/tokenizer:")


def test_kuberay_knows_every_field_of_the_cluster() -> None:
    made = ray_cluster(PODS, 20)

    assert mistakes(RAYCLUSTER, made) == []
    made["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    assert any("imagePullPolicies" in text for text in mistakes(RAYCLUSTER, made))


def test_workers_of_ray_run_one_task_each_and_its_head_none() -> None:
    spec = ray_cluster(PODS, 20)["spec"]
    [group] = spec["workerGroupSpecs"]

    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert (group["replicas"], group["rayStartParams"]["num-cpus"]) == (20, "1")


def test_ray_is_probed_with_what_the_image_has_and_its_page_is_for_its_own_pod_alone() -> None:
    spec = ray_cluster(PODS, 20)["spec"]
    [head] = spec["headGroupSpec"]["template"]["spec"]["containers"]

    assert head["readinessProbe"]["exec"]["command"][0] == "python"
    assert head["livenessProbe"]["exec"]["command"][0] == "python"
    assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    assert 8265 not in [port["containerPort"] for port in head["ports"]]


@pytest.mark.parametrize("made", [job(), ray_cluster(PODS, 2)], ids=["job", "ray"])
def test_pods_are_restricted_see_the_shared_directory_and_end_with_the_driver(made: dict[str, Any]) -> None:
    spec = made["spec"]
    templates = (
        [spec["template"]]
        if made["kind"] == "Job"
        else [spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]]
    )

    assert made["metadata"]["ownerReferences"] == [OWNER]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "cpu"
    for template in templates:
        [container] = template["spec"]["containers"]
        assert violations(template["spec"]) == []
        assert template["spec"]["automountServiceAccountToken"] is False
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
            HOME, "/tmp", "/dev/shm", "/data",
        }  # fmt: skip
        # The recipe's resources are for the stage's own pod, which holds all processes of `engine: processes`.
        assert container["resources"]["requests"]["cpu"] == "1"
