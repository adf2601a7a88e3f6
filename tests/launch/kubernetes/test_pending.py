"""Jobs that do not start: what is waited for, and what ends them."""

import dataclasses
import logging
from collections.abc import Callable

import pytest

from anadil.core.errors import PreflightError
from tests.kit.fake_kubernetes import Cluster
from tests.kit.following import PACE, Scene


def waiting(reason: str, message: str) -> Callable[[Cluster], None]:
    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.run(0)
        cluster.keep_waiting(1, reason, message)

    return story


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull"])
def test_what_never_heals_ends_the_job_at_once(scene: Scene, reason: str) -> None:
    # D6
    with pytest.raises(PreflightError, match=f"never starts: {reason}: no such image; .*image"):
        scene.launch(waiting(reason, "no such image"))

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
        "unexpected status from HEAD request: 503 Service Unavailable",
        "dial tcp 10.0.0.1:443: i/o timeout",
        "net/http: TLS handshake timeout",
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
