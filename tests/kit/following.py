"""A launcher at work against the fake cluster, while a story tells what happens to its job."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.launch.job import TrainingJob
from anadil.launch.kubernetes.backend import KubernetesBackend
from anadil.launch.kubernetes.client import RetryPolicy
from anadil.launch.kubernetes.watcher import Pace
from tests.kit.fake_kubernetes import Cluster
from tests.kit.jobs import job

QUICK = RetryPolicy(attempts=5, pause_s=0.01, longest_pause_s=0.05, connect_s=1.0, read_s=1.0)
PACE = Pace(poll_s=0.02, counts_s=0.05, artifact_s=0.2)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A cluster, a launcher and the job that it launches."""

    cluster: Cluster
    target: Path
    backend: KubernetesBackend

    def job(self, *overrides: str, run: str = "") -> TrainingJob:
        return replace(job("smoke", "cluster.nodes=2", *overrides, run=run), target=str(self.target))

    def seal(self) -> None:
        """The stage has put its artifact in its place."""
        self.target.mkdir(exist_ok=True)
        (self.target / "config.json").write_text("{}")
        artifact.seal(self.target, kind="model", origin={"stage": "pretrain"})

    def launch(self, story: Callable[[Cluster], None], *overrides: str, pace: Pace = PACE) -> None:
        """Launch and follow while the story happens."""
        backend = KubernetesBackend("pytorchjob", pace=pace, retry_policy=QUICK)
        with telling(story, self.cluster):
            backend.run(self.job(*overrides))

    def finish(self) -> None:
        """Both machines run, and one ends well."""
        self.cluster.start()
        self.succeed()

    def succeed(self) -> None:
        """One machine ends well, with its artifact."""
        self.seal()
        self.cluster.succeed(0)


def begin(cluster: Cluster) -> None:
    """Both machines run, and the launcher has seen it."""
    cluster.start()
    cluster.await_requests("GET", "pytorchjobs/", 2)


def words(code: int, message: str) -> str:
    """A termination message as our stages write it."""
    return json.dumps({"exit_code": code, "message": message})


@contextmanager
def telling(story: Callable[[Cluster], None], cluster: Cluster) -> Iterator[None]:
    """Tell a story in another thread; its own mistakes are errors of the test."""
    failures: list[BaseException] = []

    def tell() -> None:
        try:
            story(cluster)
        except BaseException as error:  # noqa: BLE001  raised below
            failures.append(error)
            cluster.vanish()  # so that the launcher does not wait for what will not come

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(10)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on stderr since the last look."""
    return capsys.readouterr().err.splitlines()
