"""Several launchers of one job: which of them may end it."""

import dataclasses
import json
import logging
import os
import signal
import threading
from collections.abc import Callable

import pytest

from anadil.core.errors import PreflightError, Stopped
from anadil.launch.kubernetes.jobs.ledger import (
    COUNTS_ANNOTATION,
    LAUNCHER_ANNOTATION,
    LAUNCHER_VARIABLE,
    POD_VARIABLE,
)
from tests.kit.fake_kubernetes import Cluster
from tests.kit.following import PACE, Scene

# A signal may come in the midst of opening a connection, whose socket is then left to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def first_launcher(scene: Scene) -> threading.Thread:
    """Another launcher at work: its counts come."""
    first = threading.Thread(target=scene.backend.run, args=[scene.job()], daemon=True)
    first.start()
    scene.cluster.start()
    scene.cluster.await_requests("PATCH", "pytorchjobs/", 2)
    return first


def signalled(number: int) -> Callable[[Cluster], None]:
    def story(cluster: Cluster) -> None:
        cluster.await_requests("GET", "pytorchjobs/", 8)
        os.kill(os.getpid(), number)

    return story


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_the_end_of_a_second_launcher_leaves_the_first_one_s_job(
    scene: Scene, number: int, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "anadil")
    first = first_launcher(scene)

    with pytest.raises(error) as ended:
        scene.launch(signalled(number))

    assert scene.cluster.asked("DELETE", ".") == 0
    assert (
        "runs on, because another launcher made it; `anadil stop anadil-pretrain-"
        in f"{ended.value}{caplog.text}"
    )
    scene.finish()
    first.join(10)
    assert not first.is_alive()


def test_a_signal_before_it_is_known_whose_the_job_is_leaves_the_first_one_s(scene: Scene) -> None:
    first = first_launcher(scene)

    def story(cluster: Cluster) -> None:
        asked = cluster.asked("POST", "pytorchjobs")
        cluster.wait(lambda: cluster.asked("POST", "pytorchjobs") > asked)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        scene.launch(story)

    assert scene.cluster.asked("DELETE", ".") == 0
    scene.finish()
    first.join(10)


def test_a_launcher_that_finds_the_job_keeps_its_limits(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)

    with pytest.raises(PreflightError, match="not started after"):
        scene.launch(lambda _: None, pace=dataclasses.replace(PACE, startup_s=0.2))

    scene.cluster.wait(lambda: not scene.cluster.jobs)


@pytest.mark.parametrize(
    ("variable", "value", "launcher"),
    [(POD_VARIABLE, "run-7-step", "pipeline"), (LAUNCHER_VARIABLE, "anadil-launch", "anadil-launch")],
)
def test_another_try_of_a_launcher_may_end_its_job(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, launcher: str
) -> None:
    monkeypatch.setenv(variable, value)
    scene.backend.run(scene.job(), detach=True)
    scene.cluster.job()["metadata"]["annotations"][LAUNCHER_ANNOTATION] = launcher

    with pytest.raises(Stopped, match="was told to end"):
        scene.launch(signalled(signal.SIGTERM))

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_creation_whose_answer_is_lost_is_the_launcher_s_own_job(scene: Scene) -> None:
    scene.cluster.fail_next("POST", "pytorchjobs", 1, None, after=True)

    with pytest.raises(Stopped, match="was told to end"):
        scene.launch(signalled(signal.SIGTERM))

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_second_launcher_that_may_not_look_at_pods_leaves_the_job(scene: Scene) -> None:
    first = first_launcher(scene)
    scene.cluster.denied.add(("list", "pods"))

    with pytest.raises(PreflightError, match="may not list pods"):
        scene.launch(lambda _: None)

    assert scene.cluster.asked("DELETE", ".") == 0
    scene.cluster.denied.clear()
    scene.finish()
    first.join(10)


def test_counts_without_a_time_charge_nothing_for_the_time_since(scene: Scene) -> None:
    scene.backend.run(scene.job("cluster.deadline_hours=72"), detach=True)
    counts = {"run_s": 600.0, "ended": 0, "steps": [], "lives": {}, "start": ""}
    scene.cluster.job()["metadata"]["annotations"][COUNTS_ANNOTATION] = json.dumps(counts)
    scene.cluster.run(0, 1)

    def story(cluster: Cluster) -> None:
        cluster.await_requests("PATCH", "pytorchjobs/", 1)
        scene.finish()

    scene.launch(story, "cluster.deadline_hours=72")

    assert scene.cluster.asked("DELETE", ".") == 0
