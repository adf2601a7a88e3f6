import json
import logging
import os
import threading
from pathlib import Path

import pytest

from anadil.core.errors import DataError, RecipeError, Stopped
from anadil.launch.job import DRAINS_ALLOWED, PYTORCHJOB, SPEC_ANNOTATION, TRAINJOB, JobKind
from anadil.launch.kubernetes.backend import KubernetesBackend, workflow_owner
from anadil.launch.kubernetes.client import Api
from anadil.launch.kubernetes.ledger import COUNTED_ANNOTATION, COUNTS_ANNOTATION
from anadil.launch.kubernetes.watcher import Pace
from tests.kit.fake_kubernetes import Cluster
from tests.kit.fake_objects import NAMESPACE, set_condition
from tests.kit.following import QUICK, Scene, begin, shown
from tests.kit.jobs import job


def test_a_job_is_followed_to_its_good_end_though_another_machine_still_runs(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    def story(cluster: Cluster) -> None:
        cluster.start()
        cluster.log(0, '{"msg": "loss 2.3"}', '{"msg": "saved"}')
        cluster.await_requests("GET", "pytorchjobs/", 2)
        scene.succeed()

    scene.launch(story)

    assert shown(capsys) == ['{"msg": "loss 2.3"}', '{"msg": "saved"}']
    assert scene.cluster.made == 1
    types = {each["type"]: each["status"] for each in scene.cluster.job()["status"]["conditions"]}
    assert types["Running"] == "False"
    assert types["Succeeded"] == "True"


def test_a_failure_outweighs_a_success(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        status = cluster.job()["status"]
        with cluster.changed:
            set_condition(status, "Succeeded", "True")
            set_condition(status, "Failed", "True", "a machine failed")

    with pytest.raises(Exception, match="a machine failed"):
        scene.launch(story)


def test_a_good_end_without_an_artifact_is_an_error(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        cluster.start()
        cluster.succeed(1)

    with pytest.raises(DataError, match=r"no artifact there, though anadil-pretrain-.* succeeded"):
        scene.launch(story)


def test_a_second_launcher_adopts_the_job(scene: Scene) -> None:
    # D3, D4
    first = threading.Thread(target=scene.backend.run, args=[scene.job()])
    first.start()
    scene.cluster.start()

    def story(cluster: Cluster) -> None:
        cluster.await_requests("POST", "pytorchjobs")
        cluster.await_requests("GET", "pytorchjobs/", 4)
        scene.succeed()

    scene.launch(story)
    first.join(5)

    assert not first.is_alive()
    assert scene.cluster.made == 1
    assert scene.cluster.asked("DELETE", ".") == 0


def test_a_job_that_does_something_else_is_not_touched(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)

    with pytest.raises(RecipeError, match=r"job of this name does something else .*; `anadil stop anadil-"):
        scene.backend.run(scene.job("pretrain.batch_size=2"))

    assert scene.cluster.made == 1


def test_a_failed_job_is_deleted_and_made_anew_when_its_pods_are_gone(scene: Scene) -> None:
    scene.cluster.deletion_s = 0.15
    scene.backend.run(scene.job("cluster.restarts=0"), detach=True)
    scene.cluster.run(0, 1)
    scene.cluster.crash(0, 3)
    old = scene.cluster.job()["metadata"]["uid"]

    def story(cluster: Cluster) -> None:
        cluster.wait(lambda: cluster.made == 2)
        scene.finish()

    scene.launch(story, "cluster.restarts=0")

    assert scene.cluster.job()["metadata"]["uid"] != old
    assert scene.cluster.asked("DELETE", "pytorchjobs/") == 1


def test_queueing_is_waited_for_and_not_counted(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anadil")

    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.suspend(yes=True)
        # Longer than the start may take.
        cluster.await_requests("GET", "pytorchjobs/", 30)
        cluster.suspend(yes=False)
        scene.finish()

    scene.launch(story, "cluster.queue=team-queue")

    assert caplog.text.count("waits in queue team-queue") == 1


def test_a_preempted_job_has_not_failed(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        cluster.job()
        for _ in range(4):
            cluster.run(0, 1)
            cluster.await_requests("GET", "pytorchjobs/", 2)
            cluster.suspend(yes=True)
            cluster.await_requests("GET", "pytorchjobs/", 2)
            cluster.suspend(yes=False)
        scene.finish()

    scene.launch(story, "cluster.restarts=1")


def test_a_job_that_somebody_deleted_is_not_waited_for(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.vanish()

    with pytest.raises(Stopped, match="it was deleted while it was followed; launch it again"):
        scene.launch(story)


def test_a_job_that_somebody_replaced_by_another_one_is_left_alone(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        with cluster.changed:
            (job,) = cluster.jobs.values()
            job["metadata"] |= {"uid": "of another", "annotations": {SPEC_ANNOTATION: "of another"}}

    with pytest.raises(Stopped, match="it was replaced by another job; launch it again"):
        scene.launch(story)

    assert scene.cluster.asked("DELETE", ".") == 0


def test_a_job_that_is_gone_and_left_its_artifact_has_ended_well(scene: Scene) -> None:
    # Its ttl was over while the launcher was away.
    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.await_requests("GET", "pytorchjobs/", 2)
        scene.seal()
        cluster.vanish()

    scene.launch(story)


def test_a_job_belongs_to_the_workflow_of_its_own_namespace_only(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-7", "uid": "4711"}
    monkeypatch.setenv("KFP_POD_NAME", "run-7-step")
    scene.cluster.pods["run-7-step"] = {
        "metadata": {"labels": {}, "ownerReferences": [{**workflow, "controller": True}]}
    }
    from kubernetes import config  # half a second

    kubeconfig = os.environ["KUBECONFIG"]
    pod_namespace = tmp_path / "namespace"
    monkeypatch.setattr("anadil.launch.kubernetes.client.POD_NAMESPACE", pod_namespace)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setattr(
        "kubernetes.config.load_incluster_config",
        lambda client_configuration: config.load_kube_config(
            kubeconfig, client_configuration=client_configuration
        ),
    )
    pod_namespace.write_text(NAMESPACE)
    another_cluster = workflow_owner(Api(NAMESPACE, QUICK))  # that of KUBECONFIG
    monkeypatch.delenv("KUBECONFIG")
    own = workflow_owner(Api(NAMESPACE, QUICK))
    pod_namespace.write_text("kubeflow")
    another_namespace = workflow_owner(Api(NAMESPACE, QUICK))

    assert another_cluster == another_namespace == []
    assert own == [{**workflow, "controller": False, "blockOwnerDeletion": False}]


def deadline(cluster: Cluster) -> int:
    seconds: int = cluster.job()["spec"]["runPolicy"]["activeDeadlineSeconds"]
    return seconds


def test_the_operator_s_deadline_leaves_a_followed_job_time_to_start(scene: Scene) -> None:
    # The operator counts from its first look at the job, the launcher from the first machine that runs.
    scene.launch(lambda _: scene.finish(), "cluster.deadline_hours=2")

    assert deadline(scene.cluster) == 2 * 3_600 + 3_600
    assert Pace().startup_s < 3_600


def test_a_detached_job_has_the_exact_deadline_and_can_be_followed_later(scene: Scene) -> None:
    scene.backend.run(scene.job("cluster.deadline_hours=2"), detach=True)
    detached = deadline(scene.cluster)

    scene.launch(lambda _: scene.finish(), "cluster.deadline_hours=2")

    assert detached == 2 * 3_600
    assert scene.cluster.made == 1


@pytest.mark.parametrize("kind", [PYTORCHJOB, TRAINJOB])
def test_loose_limits_change_nothing_else(kind: JobKind) -> None:
    backend = KubernetesBackend(kind.name)
    manifest = backend.render(job("azerbaijani-1b", "cluster.deadline_hours=1"))
    without = backend.render(job("azerbaijani-1b"))

    loose = kind.with_loose_limits(manifest, 60)

    text = json.dumps(manifest)
    restarts = text.replace('"backoffLimit": 7', f'"backoffLimit": {7 * DRAINS_ALLOWED}')
    assert json.dumps(loose) == restarts.replace('Seconds": 3600', 'Seconds": 3660') != text
    assert "activeDeadlineSeconds" not in json.dumps(kind.with_loose_limits(without, 60))


def test_a_finished_job_whose_artifact_was_removed_is_made_anew(scene: Scene) -> None:
    scene.backend.run(scene.job(), detach=True)
    scene.cluster.run(0, 1)
    scene.cluster.succeed(0)

    def story(cluster: Cluster) -> None:
        cluster.wait(lambda: cluster.made == 2)
        scene.finish()

    scene.launch(story)


def test_a_follower_leaves_its_counts_and_their_time(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        cluster.start()
        cluster.await_requests("PATCH", "pytorchjobs/", 3)
        scene.finish()

    scene.launch(story)

    annotations = scene.cluster.job()["metadata"]["annotations"]
    assert annotations[COUNTED_ANNOTATION].endswith("Z")
    assert json.loads(annotations[COUNTS_ANNOTATION])["ended"] == 0
