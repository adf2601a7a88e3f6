import dataclasses
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3

from anadil.core.errors import DataError, PreflightError, RetryableError
from anadil.launch.job import PYTORCHJOB
from anadil.launch.kubernetes.backend import KubernetesBackend
from anadil.launch.kubernetes.client import Api, Connection, JobApi, RetryPolicy
from tests.kit.fake_kubernetes import Cluster, LogCut
from tests.kit.fake_server import refused
from tests.kit.following import PACE, QUICK, Scene, begin, shown, telling, words
from tests.kit.http_server import Reply

TOO_MANY = refused(429, "too many requests", Retry_After="0")
BROKEN = refused(500, "etcdserver: leader changed")
GONE = refused(410, "the resource version is too old")
PROXY = Reply(status=503, text="<html>upstream connect error</html>")
SLOW = Reply(delay_s=0.4)


@pytest.mark.parametrize(
    ("method", "fault"),
    [*(("GET", fault) for fault in (TOO_MANY, PROXY, SLOW, None)), ("POST", BROKEN), ("PATCH", BROKEN)],
    ids=["429", "503", "slow", "cut", "POST", "PATCH"],
)
def test_a_call_is_tried_again(scene: Scene, method: str, fault: Reply | None) -> None:
    # D2
    backend = KubernetesBackend("pytorchjob", pace=PACE, retry_policy=RetryPolicy(pause_s=0.01, read_s=0.2))
    scene.cluster.fail_next(method, "pytorchjobs", 2, fault)

    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.wait(lambda: method == "GET" or cluster.asked(method, "pytorchjobs") > 2)
        scene.finish()

    with telling(story, scene.cluster):
        backend.run(scene.job())

    assert scene.cluster.made == 1
    assert scene.cluster.asked(method, "pytorchjobs") > 2


def test_a_cluster_that_never_answers_is_an_error_to_retry(scene: Scene) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        config = Path(os.environ["KUBECONFIG"])
        text = config.read_text()
        port = text.partition("127.0.0.1:")[2].split()[0]
        config.write_text(text.replace(port, str(deaf.getsockname()[1])))

        with pytest.raises(RetryableError, match=r"the Kubernetes API does not answer \(.*timed out"):
            JobApi(PYTORCHJOB, retry_policy=RetryPolicy(attempts=2, pause_s=0.01, read_s=0.05)).get("x")


@pytest.mark.parametrize(
    ("verb", "resource", "group"),
    [("create", "pytorchjobs", "kubeflow.org"), ("get", "pytorchjobs", "kubeflow.org"), ("list", "pods", "")],
)
def test_a_right_that_is_missing_is_named_as_the_rule_to_add(
    scene: Scene, verb: str, resource: str, group: str
) -> None:
    # D13
    scene.cluster.denied.add((verb, resource))

    with pytest.raises(PreflightError) as failed:
        scene.backend.run(scene.job())

    assert str(failed.value) == (
        f"system:serviceaccount:team:launcher may not {verb} {resource} in namespace team; add this rule to a Role "
        f'that is bound to it: {{"apiGroups": ["{group}"], "resources": ["{resource}"], "verbs": ["{verb}"]}}'
    )
    scene.cluster.wait(lambda: not scene.cluster.jobs)  # nobody could look after it


def test_a_policy_that_refuses_is_not_taken_for_a_missing_right(scene: Scene) -> None:
    denied = refused(403, 'admission webhook "validate.kyverno.svc" denied the request: no limits')
    scene.cluster.fail_next("POST", "pytorchjobs", 1, denied)

    with pytest.raises(PreflightError, match=r"refused \(403\): admission webhook .* `anadil launch --dry"):
        scene.backend.run(scene.job())


@pytest.mark.parametrize(
    ("installed", "kind", "text"),
    [
        (set(), "pytorchjob", "the cluster has no pytorchjobs.kubeflow.org; install the Kubeflow training operator"),
        ({"trainjobs"}, "pytorchjob", "no pytorchjobs.kubeflow.org; .* or choose another cluster.backend"),
        ({"pytorchjobs"}, "trainjob", "no trainjobs.trainer.kubeflow.org; install Kubeflow Trainer 2"),
    ],
)  # fmt: skip
def test_an_operator_that_is_not_installed_is_named(
    scene: Scene, installed: set[str], kind: str, text: str
) -> None:
    # D12
    scene.cluster.crds = installed

    with pytest.raises(PreflightError, match=text):
        KubernetesBackend(kind, pace=PACE, retry_policy=QUICK).run(scene.job())


def test_a_namespace_that_is_not_there_is_named(scene: Scene) -> None:
    with pytest.raises(PreflightError, match=r"namespace nowhere: not there; create it or correct cluster"):
        scene.backend.run(scene.job("cluster.namespace=nowhere"))


def test_a_token_that_has_run_out_is_an_error_without_the_token(scene: Scene) -> None:
    scene.cluster.fail_next("GET", "pytorchjobs/", 9, refused(401, "Unauthorized"))

    with pytest.raises(PreflightError, match=r"\(401\): the token has run out") as failed:
        JobApi(PYTORCHJOB, retry_policy=QUICK).get("x")

    assert "canary" not in str(failed.value)
    scene.cluster.faults.clear()
    scene.cluster.fail_next("GET", "pytorchjobs/", 1, refused(401, "Unauthorized"))
    assert (
        JobApi(PYTORCHJOB, retry_policy=QUICK).get("x") is None
    )  # the token was replaced, and is read again


def test_without_a_kubeconfig_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    with pytest.raises(PreflightError, match=r"no cluster: .*set KUBECONFIG, run `aws eks update-kubeconfig"):
        Api()


def test_a_log_that_breaks_off_goes_on_without_gap_or_repetition(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    # D1
    expected = [f"line {number} with some words in it" for number in range(300)]

    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.cuts += [LogCut(after_bytes=size) for size in (10, 700, 333, 1, 5000)]
        cluster.run(0, 1)
        for first in range(0, 300, 10):
            cluster.log(0, *expected[first : first + 10])
            time.sleep(0.005)
        cluster.wait(lambda: not cluster.cuts)
        scene.succeed()

    scene.launch(story)

    assert shown(capsys) == expected


def test_the_last_lines_before_a_crash_are_not_lost(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    def story(cluster: Cluster) -> None:
        cluster.job()
        cluster.cuts.append(LogCut(before="two"))
        cluster.run(0, 1)
        cluster.log(0, "one")
        cluster.wait(lambda: not cluster.cuts)
        time.sleep(0.05)
        with cluster.changed:
            cluster.log(0, "two")
            cluster.crash(0, 1)
            cluster.restart(0)
            cluster.log(0, "three")
        cluster.wait(lambda: cluster.asked("GET", "worker-0/log") >= 3)
        scene.succeed()

    scene.launch(story)

    assert shown(capsys) == ["one", "two", "three"]


def test_a_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    untrusted = urllib3.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    reset = urllib3.exceptions.ProtocolError("connection reset")

    with pytest.raises(urllib3.exceptions.SSLError):
        RetryPolicy().retries().increment("GET", "/", error=untrusted)

    assert RetryPolicy().retries().increment("GET", "/", error=reset).total == 3


REFUSED = {
    "410": GONE,
    "403": refused(403, 'pytorchjobs is forbidden: User "launcher" cannot get resource "pytorchjobs"'),
    "403 of a proxy": Reply(status=403, text="<html>Forbidden</html>"),
    "401": refused(401, "Unauthorized"),
}


@pytest.mark.parametrize(
    ("path", "reply"),
    [*(("/pytorchjobs/", reply) for reply in REFUSED.values()), ("/pods$", REFUSED["403"])],
    ids=[*REFUSED, "403 of pods"],
)
def test_a_refusal_after_a_good_look_is_waited_for(scene: Scene, reply: Reply, path: str) -> None:
    def story(cluster: Cluster) -> None:
        cluster.start()
        cluster.await_requests("GET", "pytorchjobs/", 3)
        cluster.fail_next("GET", path, 12, reply)
        cluster.wait(lambda: not cluster.faults[0].times)
        cluster.await_requests("GET", "pytorchjobs/", 3)
        scene.finish()

    scene.launch(story)

    assert scene.cluster.asked("DELETE", ".") == 0


def test_a_refusal_that_lasts_ends_the_launcher_and_leaves_the_job(scene: Scene) -> None:
    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.denied.add(("get", "pytorchjobs"))

    with pytest.raises(PreflightError, match="may not get pytorchjobs in namespace team; add this rule"):
        scene.launch(story, pace=dataclasses.replace(PACE, api_s=0.3))

    assert scene.cluster.jobs
    assert scene.cluster.asked("DELETE", ".") == 0


def test_a_certificate_that_is_not_trusted_for_a_moment_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A load balancer in front of an API server that is being replaced shows one of its own.
    caplog.set_level(logging.INFO, "anadil")
    request, bad = Connection.request, [0]

    def once_bad(connection: Connection, method: str, path: str, **more: Any) -> Any:
        if bad[0] and method == "GET" and "/pytorchjobs/" in path:
            bad[0] -= 1
            raise urllib3.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
        return request(connection, method, path, **more)

    monkeypatch.setattr(Connection, "request", once_bad)

    def story(cluster: Cluster) -> None:
        begin(cluster)
        bad[0] = 3
        cluster.await_requests("GET", "pytorchjobs/", 2)
        scene.finish()

    scene.launch(story)

    assert bad == [0]
    assert "cannot be seen: " in caplog.text
    assert "its certificate is not trusted" in caplog.text


def test_counts_that_cannot_be_written_end_no_job(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.cluster.fail_next("PATCH", "pytorchjobs/", 5, REFUSED["403"])

    def story(cluster: Cluster) -> None:
        cluster.start()
        cluster.await_requests("PATCH", "pytorchjobs/", 8)
        scene.finish()

    scene.launch(story)

    assert "what it has used cannot be noted: " in caplog.text
    assert scene.cluster.asked("DELETE", ".") == 0


def test_a_log_that_is_refused_for_a_moment_is_shown_whole(
    scene: Scene, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    scene.cluster.denied.add(("get", "pods/log"))

    def story(cluster: Cluster) -> None:
        cluster.start()
        cluster.log(0, "one")
        cluster.await_requests("GET", "/log", 3)
        time.sleep(2.2)  # longer than the job's first counts are old, which is told in whole seconds
        cluster.denied.clear()
        cluster.log(0, "two")
        cluster.await_requests("GET", "/log")
        scene.finish()

    scene.launch(story)

    assert shown(capsys) == ["one", "two"]
    assert (
        "the job's log is not shown: system:serviceaccount:team:launcher may not get pods/log" in caplog.text
    )


def test_a_right_to_read_logs_that_is_missing_does_not_hide_why_a_job_failed(scene: Scene) -> None:
    scene.cluster.denied |= {("get", "pods/log"), ("list", "events")}

    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, 3, words(3, "record 7 is no JSON"))

    with pytest.raises(DataError, match="record 7 is no JSON"):
        scene.launch(story, "cluster.restarts=0")


def test_the_server_says_how_long_to_wait(scene: Scene) -> None:
    scene.cluster.fail_next("GET", "pytorchjobs/", 1, refused(429, "later", Retry_After="1"))
    retry_policy = RetryPolicy(pause_s=0.0, longest_pause_s=0.3)
    api = JobApi(PYTORCHJOB, retry_policy=retry_policy)

    began = time.monotonic()
    api.get("x")

    assert time.monotonic() - began >= 0.3
