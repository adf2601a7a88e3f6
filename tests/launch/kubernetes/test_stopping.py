import dataclasses
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from anadil.core.errors import DataError, PreflightError, Stopped
from anadil.launch.kubernetes.backend import stop_run
from anadil.launch.kubernetes.ledger import (
    COUNTS_ANNOTATION,
    LAUNCHER_ANNOTATION,
    LAUNCHER_VARIABLE,
    POD_VARIABLE,
)
from tests.kit.fake_kubernetes import Cluster
from tests.kit.fake_server import refused
from tests.kit.following import PACE, QUICK, Scene, begin

# A signal may come in the midst of opening a connection, whose socket is then left to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def signalled(number: int) -> Callable[[Cluster], None]:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        os.kill(os.getpid(), number)

    return story


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_deletes_the_job_within_the_second_that_a_step_has(
    scene: Scene, number: int, error: type[BaseException]
) -> None:
    # D5
    scene.cluster.deletion_s = 5.0
    handler = signal.getsignal(number)

    with pytest.raises(error):
        scene.launch(signalled(number))

    assert "deletionTimestamp" in scene.cluster.job()["metadata"]
    assert signal.getsignal(number) == handler


def test_a_deletion_that_fails_at_first_is_tried_again(scene: Scene) -> None:
    scene.cluster.fail_next("DELETE", "pytorchjobs/", 2, refused(500, "busy"))

    with pytest.raises(Stopped, match="was told to end, and saves what it has trained; launch it again"):
        scene.launch(signalled(signal.SIGTERM))

    assert scene.cluster.asked("DELETE", "pytorchjobs/") == 3


def test_a_signal_while_the_job_is_made_leaves_none(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        cluster.wait(lambda: cluster.asked("POST", "pytorchjobs"))
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        scene.launch(story)

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_detached_job_outlives_its_launcher(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)

    assert "anadil.dev/launcher" not in scene.cluster.job()["metadata"]["annotations"]
    assert scene.cluster.asked("DELETE", ".") == 0


@pytest.mark.parametrize("keeps_machines", [True, False])
def test_the_end_of_a_run_stops_its_failed_jobs_that_keep_machines_alone(
    scene: Scene, *, keeps_machines: bool
) -> None:
    scene.backend.run(scene.job(f"cluster.restarts={6 * keeps_machines}", run="7"), detach=True)
    scene.cluster.run(0, 1)
    with scene.cluster.changed:
        for number in (0, 1):
            scene.cluster.crash(number, 1)
            if keeps_machines:
                scene.cluster.back_off(number)
    if keeps_machines:
        scene.cluster.fail()

    assert len(stop_run("7", kind="pytorchjob", retry_policy=QUICK)) == keeps_machines


def test_the_end_of_a_run_stops_its_jobs_that_still_run(scene: Scene) -> None:
    for run in ("7", "8"):
        scene.backend.run(scene.job(run=run), detach=True)

    stopped = stop_run("7", kind="pytorchjob", retry_policy=QUICK)

    assert len(stopped) == 1
    scene.cluster.wait(lambda: len(scene.cluster.jobs) == 1)
    assert scene.cluster.job()["metadata"]["labels"]["anadil.dev/run"] == "8"
    assert stop_run("7", kind="pytorchjob", retry_policy=QUICK) == []


def test_status_says_where_a_job_stands(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)
    name = scene.cluster.job()["metadata"]["name"]

    scene.cluster.unschedulable(1, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    starting = scene.backend.status(name)
    scene.cluster.run(0, 1)
    running = scene.backend.status(name)
    scene.cluster.suspend(yes=True)
    queued = scene.backend.status(name)

    assert (starting.state, starting.nodes, starting.running) == ("starting", 2, 0)
    assert "3 Insufficient nvidia.com/gpu.; free or add nodes" in starting.message
    assert (running.state, running.running, running.artifact) == ("running", 2, str(scene.target))
    assert running.seconds is not None
    assert (queued.state, queued.message) == ("queued", "suspended")


def test_status_of_a_failed_job_names_the_cause(scene: Scene) -> None:
    scene.backend.run(scene.job("cluster.restarts=0"), detach=True)
    scene.cluster.run(0, 1)
    scene.cluster.crash(1, 3, '{"exit_code": 3, "message": "record 7 is no JSON"}')

    status = scene.backend.status(scene.cluster.job()["metadata"]["name"])

    assert (status.state, status.exit_code) == ("failed", 3)
    assert "worker 1" in status.message
    assert "record 7 is no JSON" in status.message


def test_status_of_a_job_that_has_recovered_tells_the_truth(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)
    name = scene.cluster.job()["metadata"]["name"]
    scene.cluster.run(0, 1)
    scene.cluster.crash(1, 70, '{"exit_code": 70, "message": "bug: KeyError"}')
    down = scene.backend.status(name)
    scene.cluster.restart(1)

    status = scene.backend.status(name)

    assert (down.reason, down.exit_code) == ("Error", 70)
    assert (status.state, status.reason, status.exit_code, status.restarts) == ("running", "", None, 1)
    assert status.message.startswith("runs again; before, worker 1 (pod ")
    scene.succeed()
    ended = scene.backend.status(name)
    assert (ended.state, ended.message, ended.exit_code) == ("succeeded", "", None)


def test_logs_are_lines_of_the_first_machine(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)
    name = scene.cluster.job()["metadata"]["name"]
    with pytest.raises(DataError, match=f"no log, worker 0 has not started; `anadil status {name}` says why"):
        list(scene.backend.logs(name))
    scene.cluster.run(0, 1)
    scene.cluster.log(0, "one", "two")

    now = list(scene.backend.logs(name))
    followed: list[str] = []
    reader = threading.Thread(target=lambda: followed.extend(scene.backend.logs(name, follow=True)))
    reader.start()
    scene.cluster.wait(lambda: scene.cluster.asked("GET", "/log") == 2)
    scene.cluster.log(0, "three")
    time.sleep(0.05)
    scene.cluster.succeed(0)
    reader.join(5)

    assert now == ["one", "two"]
    assert followed == ["one", "two", "three"]


def test_stop_ends_a_job_once(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)
    name = scene.cluster.job()["metadata"]["name"]

    scene.backend.stop(name)

    scene.cluster.wait(lambda: not scene.cluster.jobs)
    with pytest.raises(DataError, match=f"{name}: no such PyTorchJob in namespace team; look with"):
        scene.backend.stop(name)


def test_a_job_that_has_ended_is_left_and_said_to_have_ended(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)
    name = scene.cluster.job()["metadata"]["name"]
    scene.cluster.run(0, 1)
    for index in (0, 1):
        scene.cluster.succeed(index)

    assert scene.backend.stop(name) is False
    assert name in scene.cluster.jobs


def first_launcher(scene: Scene) -> threading.Thread:
    """Another launcher at work: its counts come."""
    first = threading.Thread(target=scene.backend.run, args=[scene.job()], daemon=True)
    first.start()
    scene.cluster.start()
    scene.cluster.await_requests("PATCH", "pytorchjobs/", 2)
    return first


def signalled_later(number: int) -> Callable[[Cluster], None]:
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
        scene.launch(signalled_later(number))

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
        scene.launch(signalled_later(signal.SIGTERM))

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


def test_a_creation_whose_answer_is_lost_is_the_launcher_s_own_job(scene: Scene) -> None:
    scene.cluster.fail_next("POST", "pytorchjobs", 1, None, after=True)

    with pytest.raises(Stopped, match="was told to end"):
        scene.launch(signalled_later(signal.SIGTERM))

    assert scene.cluster.made == 1
    scene.cluster.wait(lambda: not scene.cluster.jobs)
