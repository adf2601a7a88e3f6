"""Which failures a followed job is started again for, and what a container that waits for that holds."""

import pytest

from anadil.core.errors import AnadilError, DataError, IntegrityError
from tests.kit.fake_kubernetes import Cluster
from tests.kit.following import Scene, begin, shown, words


@pytest.mark.parametrize("code", [3, 7, 70])
def test_a_failure_that_would_come_again_is_not_started_again(scene: Scene, code: int) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, code, words(code, "corpus is empty"))

    again = rf"^exit code {code}: another start would end the same; .*: corpus is empty"
    with pytest.raises(AnadilError, match=again) as failed:
        scene.launch(story, "cluster.restarts=3")

    assert failed.value.exit_code == code
    scene.cluster.wait(lambda: not scene.cluster.jobs)


@pytest.mark.parametrize(
    ("code", "last", "kind"),
    [
        (3, words(143, "stopped by SIGTERM"), DataError),
        (5, words(138, "rank 1 has lost another process of the job (Broken pipe)"), IntegrityError),
    ],
)
def test_the_last_word_of_a_process_that_did_not_begin_it_does_not_hide_the_failure(
    scene: Scene, code: int, last: str, kind: type[AnadilError]
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, code, last)

    with pytest.raises(kind, match=f"exit code {code}: another start would end the same"):
        scene.launch(story, "cluster.restarts=3")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (138, words(138, "rank 0 has lost another process of the job")),
        (143, words(143, "stopped by SIGTERM")),
        (137, ""),
        (1, "Traceback (most recent call last):"),
        (2, "no such file"),  # of the interpreter: the stage itself has said nothing
        (70, words(70, "bug: AcceleratorError: CUDA error: uncorrectable ECC error encountered")),
    ],
)
def test_a_failure_that_the_next_start_may_not_have_is_started_again(
    scene: Scene, code: int, message: str
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, code, message)
        cluster.await_requests("GET", "pytorchjobs/", 3)
        cluster.restart(0)
        scene.succeed()

    scene.launch(story, "cluster.restarts=1")


def test_a_failed_job_whose_containers_wait_to_be_started_again_gives_its_machines_back(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        with cluster.changed:  # all between two looks of the launcher
            for number in (0, 1):
                cluster.crash(number, 1, words(1, "loss is not a number"))
                cluster.back_off(number)
            cluster.fail()

    with pytest.raises(AnadilError, match="loss is not a number"):
        scene.launch(story)

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_container_that_waits_to_be_started_again_has_failed_once(
    scene: Scene, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        for turn in range(2):
            cluster.log(1, f"line of start {turn}")
            cluster.crash(1, 1, words(1, f"failure {turn}"))
            if turn == 0:  # seen while it has ended, and while it waits
                cluster.await_requests("GET", "pytorchjobs/", 3)
            cluster.back_off(1)
            if turn == 0:
                cluster.await_requests("GET", "pytorchjobs/", 3)
                cluster.restart(1)
                cluster.await_requests("GET", "pytorchjobs/", 3)

    with pytest.raises(AnadilError, match=r"^failed 2 times, .*: failure 1, exit code 1"):
        scene.launch(story, "cluster.restarts=1")

    assert caplog.text.count("a worker failed; restart") == 1
    assert shown(capsys) == ["line of start 1"]
