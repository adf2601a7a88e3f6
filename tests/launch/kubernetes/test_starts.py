import dataclasses
import logging
from collections.abc import Callable

import pytest

from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError
from tests.kit.fake_kubernetes import Cluster
from tests.kit.following import PACE, Scene, begin, shown, words


def waiting(reason: str, message: str) -> Callable[[Cluster], None]:
    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.run(0)
        cluster.keep_waiting(1, reason, message)

    return story


def test_what_never_heals_ends_the_job_at_once(scene: Scene) -> None:
    # D6
    with pytest.raises(PreflightError, match=r"never starts: InvalidImageName: no such image; .*image"):
        scene.launch(waiting("InvalidImageName", "no such image"))

    scene.cluster.wait(lambda: not scene.cluster.jobs)


NO_IMAGE = "registry.example/anadil/pretrain:0.1.0"
ABSENT = {
    "containerd": f'ErrImagePull: rpc error: code = NotFound desc = failed to pull "{NO_IMAGE}": {NO_IMAGE}: not found',
    "cri-o": "reading manifest 0.1.0 in registry.example/anadil/pretrain: manifest unknown",
    "docker hub": "pull access denied, repository does not exist or may require authorization: insufficient_scope",
    "ecr": "name unknown: The repository with name 'anadil' does not exist in the registry with id '1'",
}


@pytest.mark.parametrize(
    ("reason", "message"),
    [*(("ErrImagePull", message) for message in ABSENT.values()), ("ImagePullBackOff", ABSENT["cri-o"])],
    ids=[*ABSENT, "back-off"],
)
def test_an_image_that_is_not_there_ends_the_job_soon(scene: Scene, reason: str, message: str) -> None:
    with pytest.raises(PreflightError, match=rf"never starts: {reason}: .*; push the image, correct"):
        scene.launch(waiting(reason, message), pace=dataclasses.replace(PACE, image_s=0.1))

    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_where_only_an_event_says_that_the_image_is_not_there_it_ends_too(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        waiting("ImagePullBackOff", f'Back-off pulling image "{NO_IMAGE}"')(cluster)
        pod = f"{cluster.job()['metadata']['name']}-worker-1"
        cluster.say(
            pod, "Failed", f'Failed to pull image "{NO_IMAGE}": code = NotFound desc = {NO_IMAGE}: not found'
        )
        cluster.say(pod, "Failed", "Error: ErrImagePull")
        cluster.say(pod, "BackOff", f'Back-off pulling image "{NO_IMAGE}"', "Normal")

    with pytest.raises(PreflightError, match=r"never starts: ImagePullBackOff: Failed to pull .*: not found"):
        scene.launch(story, pace=dataclasses.replace(PACE, image_s=0.1))


@pytest.mark.parametrize(
    "message",
    [
        "dial tcp: lookup registry.example: no such host",
        "failed to authorize: 401 Unauthorized",
        "registry.example/anadil/pretrain: not found (mirror answers 502 Bad Gateway)",
    ],
)
def test_a_registry_that_is_out_of_reach_is_waited_for(scene: Scene, message: str) -> None:
    def story(cluster: Cluster) -> None:
        waiting("ImagePullBackOff", message)(cluster)
        cluster.await_requests("GET", "pytorchjobs/", 15)
        cluster.run(1)
        scene.finish()

    scene.launch(story, pace=dataclasses.replace(PACE, image_s=0.05))


def unbound(cluster: Cluster) -> None:
    cluster.job()
    cluster.unschedulable(0, 'persistentvolumeclaim "fsx" not found')


def no_quota(cluster: Cluster) -> None:
    name = cluster.job()["metadata"]["name"]
    cluster.say(name, "FailedCreatePod", "exceeded quota: team, requested: nvidia.com/gpu=8")
    with cluster.changed:
        cluster.has_operator = False
        cluster.pods.clear()


def no_mount(cluster: Cluster) -> None:
    name = cluster.job()["metadata"]["name"]
    cluster.say(f"{name}-worker-0", "FailedMount", "rpc error: no such file system")


@pytest.mark.parametrize(
    ("story", "text"),
    [
        (unbound, 'Unschedulable: persistentvolumeclaim "fsx" not found; make the claim that cluster.volumes'),
        (waiting("ImagePullBackOff", "not found"), "ImagePullBackOff: not found; push the image"),
        (waiting("CreateContainerConfigError", "secret"), "CreateContainerConfigError: secret; make the secret"),
        (no_quota, "exceeded quota: team, requested: .*; ask for a larger ResourceQuota"),
        (no_mount, "FailedMount: rpc error: no such file system; check the claim"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_start_is_ended_with_the_reason(
    scene: Scene, story: Callable[[Cluster], None], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    # D6
    caplog.set_level(logging.INFO, "anadil")

    with pytest.raises(PreflightError, match=rf"not started after .*s: .*{text}"):
        scene.launch(story, pace=dataclasses.replace(PACE, startup_s=0.5, replacement_s=0.5))

    said = [record.getMessage() for record in caplog.records if "workers run" in record.getMessage()]
    assert len(said) == len(set(said))
    scene.cluster.wait(lambda: not scene.cluster.jobs)


def test_a_job_that_no_operator_sees_is_ended(scene: Scene) -> None:
    scene.cluster.has_operator = False

    with pytest.raises(PreflightError, match=r"nobody has acted on it for .*; start the Kubeflow training"):
        scene.launch(lambda _: None, pace=dataclasses.replace(PACE, operator_s=0.2))


@pytest.mark.parametrize(("code", "has_words"), [(3, True), (7, True), (70, True), (2, False), (3, False)])
def test_a_failure_that_would_come_again_is_not_started_again(
    scene: Scene, code: int, has_words: bool
) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, code, words(code, "corpus is empty") if has_words else "corpus is empty")

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
        (1, "Traceback (most recent call last):"),
        (70, "no such device"),  # the stage itself has said nothing
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

    assert caplog.text.count("; restart") == 1
    assert shown(capsys) == ["line of start 1"]
