"""Rights, tokens and certificates that were good, refused for a moment or for ever."""

import dataclasses
import logging
import time
from typing import Any

import pytest
import urllib3

from anadil.core.errors import DataError, PreflightError
from anadil.launch.kubernetes.api.connection import Connection
from tests.kit.fake_kubernetes import Cluster
from tests.kit.fake_server import refused
from tests.kit.following import PACE, Scene, begin, shown, words
from tests.kit.http_server import Reply

REFUSED = {
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
    scene: Scene, capsys: pytest.CaptureFixture[str]
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


def test_a_right_to_read_logs_that_is_missing_does_not_hide_why_a_job_failed(scene: Scene) -> None:
    scene.cluster.denied |= {("get", "pods/log"), ("list", "events")}

    def story(cluster: Cluster) -> None:
        begin(cluster)
        cluster.crash(0, 3, words(3, "record 7 is no JSON"))

    with pytest.raises(DataError, match="record 7 is no JSON"):
        scene.launch(story, "cluster.restarts=0")
