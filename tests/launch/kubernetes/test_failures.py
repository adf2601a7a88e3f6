import dataclasses
import json

import pytest

from anadil.core.errors import (
    BUG,
    AnadilError,
    BudgetReached,
    DataError,
    IntegrityError,
    PreflightError,
    RecipeError,
    RetryableError,
    Stopped,
)
from tests.kit.fake_kubernetes import Cluster
from tests.kit.fake_objects import now
from tests.kit.following import PACE, Scene, begin, shown, telling, words

NO_RESTART = "cluster.restarts=0"


def error_line(message: str, second: float) -> str:
    return json.dumps(
        {"ts": f"2026-03-01T10:00:{second:09.6f}Z", "level": "error", "rank": 0, "msg": message}
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, RecipeError), (3, DataError), (4, PreflightError), (5, IntegrityError), (7, BudgetReached),
        (138, RetryableError), (143, Stopped), (137, RetryableError), (127, PreflightError), (BUG, AnadilError),
    ],
)  # fmt: skip
def test_a_failure_is_the_error_of_the_exit_code_and_gives_the_other_machines_back(
    scene: Scene, code: int, kind: type[AnadilError]
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, code, words(code, "corpus is empty"))

    first = r"worker 0 \(pod .*-worker-0, node node-0\) failed: corpus is empty"
    with pytest.raises(kind, match=first) as failed:
        scene.launch(story, NO_RESTART)

    assert type(failed.value) is kind
    assert failed.value.exit_code == {137: 138, 127: 4}.get(code, code)
    assert any(method == "DELETE" for method, _ in scene.cluster.requests)


def test_the_machine_that_failed_first_is_named_though_another_ended_earlier(
    scene: Scene, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # D7: torchrun on worker 1 still waits for its processes when worker 0 has given up already.
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.log(1, error_line("CUDA error: an illegal memory access", 1.5))
        cluster.log(0, error_line("NCCL: remote process exited", 4.0))
        with cluster.changed:
            cluster.crash(0, 1)
            cluster.crash(1, 1)
            cluster.pod(1)["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = now()

    with pytest.raises(AnadilError, match=r"worker 1 .* CUDA error: an illegal memory access, exit code 1"):
        scene.launch(story, NO_RESTART)

    assert error_line("CUDA error: an illegal memory access", 1.5) in shown(capsys)
    assert "the last 1 lines of worker 1" in caplog.text
    assert "worker 0: Error, exit code 1, node node-0" in caplog.text


LOST, TORN = "has lost another process of the job", (5, "is not as it was written")


@pytest.mark.parametrize(
    ("code", "message", "other"),
    [
        (138, f"rank 0 {LOST} (Connection closed by peer)", TORN),
        (138, f"rank 0 {LOST} (Connection closed by peer)", (137, "")),
        (138, f"node-0 {LOST} (RendezvousTimeoutError where the machines meet)", TORN),
        # Images of older versions call it a bug.
        (70, "bug: RendezvousConnectionError: The connection to the C10d store has failed.", TORN),
        # It was told to stop.
        (143, "stopped by SIGTERM", TORN),
    ],
)
def test_a_machine_that_lost_another_one_did_not_begin_it(
    scene: Scene, code: int, message: str, other: tuple[int, str]
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        with cluster.changed:
            cluster.crash(0, code, words(code, message))
            cluster.crash(1, other[0], words(*other) if other[1] else "")

    with pytest.raises(AnadilError, match="worker 1") as failed:
        scene.launch(story, NO_RESTART)

    assert failed.value.exit_code == (138 if other[0] == 137 else other[0])


def test_200_lines_of_the_first_failure_and_the_events_are_shown(
    scene: Scene, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.log(1, *(f"line {number}" for number in range(500)))
        name = cluster.job()["metadata"]["name"]
        cluster.say(f"{name}-worker-1", "Killing", "Stopping container pytorch")
        cluster.crash(1, 137, reason="OOMKilled")

    with pytest.raises(PreflightError, match=r"OOMKilled, exit code 137; more memory is needed: raise"):
        scene.launch(story, NO_RESTART)

    assert shown(capsys) == [f"line {number}" for number in range(300, 500)]
    assert "worker-1: Killing: Stopping container pytorch" in caplog.text
    # What to do stands before the log.
    assert caplog.text.index("raise cluster.resources") < caplog.text.index("lines of worker 1")


def test_an_event_tells_of_memory_where_no_pod_does(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.say(
            cluster.job()["metadata"]["name"], "OOMKilling", "Memory cgroup out of memory: Killed process 7"
        )
        cluster.fail()

    with pytest.raises(PreflightError, match=r"out of memory: Killed process 7; more memory is needed"):
        scene.launch(story, NO_RESTART)


def test_an_eviction_can_be_retried(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.evict(1)

    with pytest.raises(RetryableError, match=r"node-1\) failed: Evicted The node was low on memory"):
        scene.launch(story, NO_RESTART)


def drain_and_return(cluster: Cluster, step: int) -> None:
    """A node is emptied and comes back. Worker 0 loses the one that went, and starts again with it."""
    cluster.drain(1)
    cluster.crash(0, 138, words(138, "rank 0 has lost another process of the job"))
    cluster.await_requests("GET", "pytorchjobs/", 3)
    cluster.replace(1)
    cluster.restart(0)
    cluster.run(1)
    cluster.await_requests("GET", "pytorchjobs/", 3)
    cluster.log(0, f'{{"figures": {{"step": {step}}}}}')
    cluster.await_requests("GET", "pytorchjobs/", 3)


def test_a_drained_node_uses_up_no_restart(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        for _ in range(2):
            drain_and_return(cluster, 7)
        cluster.crash(1, 1, words(1, "its own"))
        cluster.await_requests("GET", "pytorchjobs/", 3)
        cluster.restart(1)
        cluster.await_requests("GET", "pytorchjobs/", 3)
        scene.succeed()

    scene.launch(story, "cluster.restarts=3")

    assert caplog.text.count("the cluster took a worker away; this uses up no restart") == 2
    assert caplog.text.count("; restart 1 of 3") == 1


def test_a_worker_that_fails_by_itself_as_another_is_drained_counts(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.drain(1)
        cluster.crash(0, 1, words(1, "its own"))
        cluster.await_requests("GET", "pytorchjobs/", 3)
        cluster.replace(1)
        cluster.restart(0)
        cluster.run(1)
        cluster.await_requests("GET", "pytorchjobs/", 3)
        scene.succeed()

    scene.launch(story, "cluster.restarts=1")

    assert caplog.text.count("; restart 1 of 1") == 1
    assert "uses up no restart" not in caplog.text


def test_events_of_an_earlier_object_of_the_name_are_not_told(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def story(cluster: Cluster) -> None:
        name = cluster.job()["metadata"]["name"]
        begin(cluster)
        cluster.say(name, "Failed", "of the job before it", uid="of another job")
        cluster.say(name, "Failed", "of this job")
        cluster.crash(0, 3, words(3, "corpus is empty"))

    with pytest.raises(DataError):
        scene.launch(story)

    assert "of this job" in caplog.text
    assert "of the job before it" not in caplog.text


def test_restarts_in_place_and_new_pods_are_counted_together(scene: Scene) -> None:
    # D9, D8
    def story(cluster: Cluster) -> None:
        begin(cluster)
        step = 0
        for turn in range(3):
            cluster.log(0, *(f'{{"figures": {{"step": {step + each}}}}}' for each in range(3)))
            step += 10
            cluster.await_requests("GET", "pytorchjobs/", 3)
            cluster.crash(1, 1, words(1, f"failure {turn}"))
            if turn == 2:
                return
            cluster.await_requests("GET", "pytorchjobs/", 2)
            if turn:
                cluster.replace(1)
                cluster.run(1)
            else:
                cluster.restart(1)
            cluster.await_requests("GET", "pytorchjobs/", 3)

    told = r"failed 3 times, cluster.restarts allows 2 restarts; .*failure 2.*the first of 3 failures: .*failure 0"
    with pytest.raises(AnadilError, match=told):
        scene.launch(story, "cluster.restarts=2")

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_machines_that_fail_together_use_up_one_restart(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, 1)
        cluster.await_requests("GET", "pytorchjobs/", 2)
        cluster.crash(1, 1)
        cluster.await_requests("GET", "pytorchjobs/", 2)
        cluster.restart(0)
        cluster.restart(1)
        cluster.await_requests("GET", "pytorchjobs/", 2)
        scene.succeed()

    scene.launch(story, "cluster.restarts=1")

    assert caplog.text.count("; restart 1 of 1") == 1


def test_three_failures_at_one_step_end_the_job(scene: Scene) -> None:
    # D9: every start goes on from step 100 and dies after step 120.
    def story(cluster: Cluster) -> None:
        begin(cluster)
        for turn in range(3):
            if turn:
                cluster.await_requests("GET", "pytorchjobs/", 2)
                cluster.restart(0)
            for step in (100, 110, 120):
                cluster.log(0, f'{{"msg": "step={step} loss=2.1"}}')
            cluster.await_requests("GET", "pytorchjobs/", 4)
            cluster.crash(0, 1, words(1, "loss is not a number"))

    with pytest.raises(AnadilError, match=r"deterministic failure at step 120, .*loss is not a number"):
        scene.launch(story, "cluster.restarts=9")

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_new_launcher_goes_on_counting(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, 1)
        cluster.await_requests("PATCH", "pytorchjobs/", 2)
        cluster.fail_next("GET", "pytorchjobs/", 1000, None)

    with pytest.raises(RetryableError, match="does not answer"):
        scene.launch(story, "cluster.restarts=1", pace=dataclasses.replace(PACE, api_s=0.1))
    scene.cluster.faults.clear()
    scene.cluster.restart(0)

    def second(cluster: Cluster) -> None:
        cluster.await_requests("GET", "pytorchjobs/", 3)
        cluster.crash(0, 1)

    with pytest.raises(AnadilError, match=r"failed 2 times, cluster.restarts allows 1 restarts"):
        scene.launch(second, "cluster.restarts=1")


def test_a_job_that_runs_too_long_is_ended(scene: Scene) -> None:
    with pytest.raises(BudgetReached, match=r"deadline_hours allows 5e-05 h; raise it and launch it again"):
        scene.launch(begin, "cluster.deadline_hours=0.00005")

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_step_that_is_tried_again_tells_the_failure_again_and_starts_nothing(scene: Scene) -> None:
    job = scene.job(NO_RESTART, run="run-7")

    def story(cluster: Cluster) -> None:
        begin(cluster)
        with cluster.changed:  # both between two looks of the operator
            for number in (0, 1):
                cluster.crash(number, 3, words(3, "corpus is empty"))

    with pytest.raises(DataError, match="corpus is empty"), telling(story, scene.cluster):
        scene.backend.run(job)
    with pytest.raises(DataError, match="corpus is empty"):
        scene.backend.run(job)

    assert scene.cluster.made == 1
