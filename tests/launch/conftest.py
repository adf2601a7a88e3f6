"""A cluster that is not there, and a launcher that does not know it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anadil.launch.kubernetes.backend import KubernetesBackend
from tests.kit.crds import PYTORCHJOB, mistakes
from tests.kit.fake_kubernetes import Cluster
from tests.kit.fake_server import serving
from tests.kit.following import PACE, QUICK, Scene


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An empty namespace that the kubeconfig leads to."""
    made = Cluster()
    made.validate = _mistakes
    with serving(made, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield made
        made.vanish()  # ends the logs that are still followed


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Scene:
    """A launcher with little retry_policy."""
    backend = KubernetesBackend("pytorchjob", pace=PACE, retry_policy=QUICK)
    return Scene(cluster=cluster, target=tmp_path / "model", backend=backend)


def _mistakes(manifest: dict[str, Any]) -> list[str]:
    return [problem for definition in PYTORCHJOB for problem in mistakes(definition, manifest)]
