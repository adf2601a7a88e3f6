import os
import time
from pathlib import Path

import pytest
import yaml

from anadil.launch.kubernetes.checks import run_cluster_checks
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult
from tests.cli.doctor.lines import line, names, with_timeout
from tests.kit.fake_cluster import Cluster
from tests.kit.fake_objects import TOKEN
from tests.kit.fake_server import serving
from tests.kit.harness import again

SPACE = "/api/v1/namespaces/hyperpod-ns-team"


def test_a_cluster_that_has_everything_passes_every_line(cluster: Cluster, wanted: Recipe) -> None:
    checks = run_cluster_checks(wanted)

    assert names(checks, "failed") == set()
    # The data lie on a claim that this machine does not mount.
    unseen = {"clean.inputs", "finetune.inputs", "evaluate.heldout", "base.model"}
    assert names(checks, "skipped") == {"kubeflow pipelines", "mlflow", *unseen}
    assert names(checks, "passed") == {
        "kubernetes", "namespace", "pod security", "job API", "training operator", "permissions", "queue",
        "claim fsx", "service account", "secret hub", "secret alerts", "node health", "nodes", "GPUs", "EFA",
        "images", "storage", "packages",
    }  # fmt: skip


def test_looking_changes_nothing_in_the_cluster(cluster: Cluster, wanted: Recipe) -> None:
    run_cluster_checks(wanted)

    posted = {path for method, path in cluster.asked if method != "GET"}
    assert posted == {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    }


def test_no_value_of_a_secret_and_no_token_is_told(cluster: Cluster, wanted: Recipe) -> None:
    told = repr(run_cluster_checks(wanted))

    assert "HF_TOKEN" in told
    assert "aGZfY2FuYXJ5" not in told
    assert "hf_canary" not in told
    assert TOKEN not in told


def test_an_api_that_is_away_is_one_failure(
    wanted: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Cluster(), tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    started = time.monotonic()

    checks = run_cluster_checks(wanted)

    assert time.monotonic() - started < 10
    assert names(checks, "failed") == {"kubernetes"}
    assert f"http://127.0.0.1:{kubeconfig.name.partition('-')[2]}" in checks[0].detail
    assert "KUBECONFIG" in checks[0].remedy
    assert {"namespace", "permissions", "nodes"} <= names(checks, "skipped")
    assert {"images", "storage"} <= names(checks, "passed")


def test_a_check_that_hangs_is_left_behind() -> None:
    def hang() -> list[CheckResult]:
        time.sleep(2)
        return []

    [check] = with_timeout("slow", hang, 0.05)

    assert check.status == "failed"
    assert check.detail == "no answer in 0 s"


@pytest.mark.parametrize("content", ["", "no: [kube", "apiVersion: v1\nkind: Config\n"])
def test_no_usable_kubeconfig_is_one_failure(
    wanted: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))

    checks = run_cluster_checks(wanted)

    assert names(checks, "failed") == {"kubernetes"}
    assert checks[0].detail.startswith("no cluster: ")


def test_an_old_token_is_told_as_such(cluster: Cluster, wanted: Recipe) -> None:
    path = Path(os.environ["KUBECONFIG"])
    config = yaml.safe_load(path.read_text())
    config["users"][0]["user"]["token"] = "old"
    path.write_text(yaml.safe_dump(config))

    checks = run_cluster_checks(wanted)

    assert names(checks, "failed") == {"kubernetes"}
    assert checks[0].detail == "401 Unauthorized"
    assert "log in again" in checks[0].remedy


def test_a_namespace_that_is_not_there_is_one_failure(cluster: Cluster, wanted: Recipe) -> None:
    del cluster.objects[SPACE]

    checks = run_cluster_checks(wanted)

    assert names(checks, "failed") == {"namespace"}
    assert {"permissions", "queue", "volumes", "secrets", "service account"} <= names(checks, "skipped")
    [check] = [check for check in checks if check.name == "namespace"]
    assert check.remedy.startswith("kubectl create namespace hyperpod-ns-team")


def test_a_missing_job_api_names_how_to_install_it(cluster: Cluster, wanted: Recipe) -> None:
    cluster.serve_group("kubeflow.org", "v1", "notebooks")

    checks = run_cluster_checks(wanted)

    assert names(checks, "failed") == {"job API"}
    assert "training operator" in names(checks, "skipped")
    [check] = [check for check in checks if check.name == "job API"]
    assert check.detail == "pytorchjobs.kubeflow.org v1 is not served (the group is served in v1)"
    assert "kubectl apply" in check.remedy
    assert "trainjob" not in check.remedy


def test_sagemaker_needs_no_nodes_here(cluster: Cluster, wanted: Recipe) -> None:
    cluster.objects["/api/v1/nodes"]["items"] = []

    checks = run_cluster_checks(again(wanted, "cluster.backend=sagemaker", "cluster.hyperpod=false"))

    assert names(checks, "failed") == set()
    assert "nodes" in names(checks, "skipped")


def test_a_trainjob_needs_its_runtime(cluster: Cluster, wanted: Recipe) -> None:
    cluster.serve_group("trainer.kubeflow.org", "v1alpha1", "trainjobs")
    recipe = again(wanted, "cluster.backend=trainjob")

    without = line(recipe, "training runtime")
    cluster.put("/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/torch-distributed")
    with_it = line(recipe, "training runtime")

    assert (without.status, with_it.status) == ("failed", "passed")
    assert "overlays/runtimes" in without.remedy


def test_what_may_not_be_read_is_skipped(cluster: Cluster, wanted: Recipe) -> None:
    cluster.forbidden = {"/api/v1/nodes", "/apis/apps/v1/deployments", SPACE, f"{SPACE}/secrets/hub"}

    checks = run_cluster_checks(wanted)

    assert names(checks, "failed") == set()
    assert {"nodes", "training operator", "namespace", "secret hub"} <= names(checks, "skipped")


def test_a_missing_right_names_the_rule(cluster: Cluster, wanted: Recipe) -> None:
    cluster.denied = {("create", "pytorchjobs"), ("delete", "pytorchjobs"), ("get", "pods/log")}

    check = line(wanted, "permissions")

    assert check.status == "failed"
    assert "may not: create, delete pytorchjobs; get pods/log" in check.detail
    assert (
        '{apiGroups: ["kubeflow.org"], resources: ["pytorchjobs"], verbs: [create, delete]}' in check.remedy
    )
    assert '{apiGroups: [""], resources: ["pods/log"], verbs: [get]}' in check.remedy
    assert "system:serviceaccount:kubeflow:pipeline-runner" in check.remedy


@pytest.mark.parametrize(
    ("engine", "resource", "group"), [("job", "jobs", "batch"), ("ray", "rayclusters", "ray.io")]
)
def test_what_clean_makes_in_the_cluster_must_be_known_and_allowed(
    cluster: Cluster, wanted: Recipe, engine: str, resource: str, group: str
) -> None:
    recipe = again(wanted, f"clean.engine={engine}")
    cluster.objects[f"/apis/{group}/v1"] = {"resources": [{"name": resource}]}

    assert line(recipe, "clean engine").status == line(recipe, "clean permissions").status == "passed"
    cluster.denied = {("delete", resource)}
    denied = line(recipe, "clean permissions")
    assert denied.status == "failed"
    assert f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: [delete]}}' in denied.remedy
    del cluster.objects[f"/apis/{group}/v1"]
    absent = line(recipe, "clean engine")
    assert absent.status == "failed"
    assert f"no {resource}.{group}" in absent.detail
    assert absent.remedy


def test_steps_that_train_in_their_own_pod_need_no_job_api(cluster: Cluster, wanted: Recipe) -> None:
    del cluster.objects["/apis/kubeflow.org/v1"]

    checks = run_cluster_checks(again(wanted, "cluster.backend=local"))

    assert names(checks, "failed") == set()
    assert {"job API", "training operator", "permissions", "queue"} <= names(checks, "skipped")
