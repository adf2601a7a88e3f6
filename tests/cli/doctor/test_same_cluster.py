"""One rule for doctor, launcher and exit handler: which cluster and namespace they talk to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError
from anadil.launch.kubernetes.backend import KubernetesBackend, stop_run
from anadil.launch.kubernetes.checks import run_cluster_checks
from anadil.recipe.sections import Recipe
from tests.kit.fake_cluster import Cluster
from tests.kit.fake_server import serving
from tests.kit.harness import again

JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster of the pod that we run in, in its namespace `of-the-pod`."""
    from kubernetes import config  # half a second

    served = Cluster()
    with serving(served, tmp_path) as kubeconfig:

        def load(client_configuration: Any) -> None:
            config.load_kube_config(str(kubeconfig), client_configuration=client_configuration)

        namespace = tmp_path / "namespace"
        namespace.write_text("of-the-pod\n", encoding="utf-8")
        monkeypatch.setattr("anadil.launch.kubernetes.client.POD_NAMESPACE", namespace)
        monkeypatch.setattr("kubernetes.config.load_incluster_config", load)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.delenv("KUBECONFIG", raising=False)
        yield served


def ask_with_everything(recipe: Recipe) -> None:
    run_cluster_checks(recipe)
    with pytest.raises(DataError):
        KubernetesBackend("pytorchjob").status("none")
    assert stop_run("7", kind="pytorchjob") == []


@pytest.mark.parametrize("explicit", [True, False], ids=["KUBECONFIG", "none"])
def test_inside_a_pod_the_doctor_and_the_launcher_talk_to_the_same_cluster(
    pod: Cluster, wanted: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, explicit: bool
) -> None:
    named = Cluster()
    with serving(named, tmp_path) as kubeconfig:
        if explicit:
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        chosen, other = (named, pod) if explicit else (pod, named)
        namespace = "team" if explicit else "of-the-pod"
        jobs = JOBS.format(namespace)
        chosen.objects[jobs] = {"items": []}
        chosen.missing[f"{jobs}/none"] = {"name": "none", "kind": "pytorchjobs"}

        ask_with_everything(again(wanted, "cluster.namespace=null", "cluster.hyperpod=false"))

    paths = {path for _, path in chosen.asked}
    assert {f"/api/v1/namespaces/{namespace}", "/version", jobs, f"{jobs}/none"} <= paths
    assert other.asked == []
