import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from anadil.preflight import services
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult
from tests.kit.harness import again
from tests.kit.http_server import Reply, Request, http_server

HEALTHZ = "/apis/v2beta1/healthz"
SEARCH = "/api/2.0/mlflow/experiments/search"


class Server:
    """Answers by path; may refuse names and strangers as MLflow does."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.allowed_host = ""
        self.login = ""
        self.port = 0
        self.location = ""

    def reply(self, request: Request) -> Reply:
        status, text = self.answers.get(request.path, (404, "no such page"))
        if request.path != "/health" and self.allowed_host not in ("", request.headers["Host"]):
            status, text = 403, "Invalid Host header - possible DNS rebinding attack detected"
        elif request.path != "/health" and self.login not in ("", request.headers["Authorization"]):
            status, text = 401, "You are not authenticated."
        return Reply(status=status, text=text, headers={"Location": self.location} if self.location else {})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    known = Server()
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
    with http_server(known.reply) as known.port:
        yield known


def kubeflow(host: str | None) -> CheckResult:
    [check] = services.check_kubeflow(host)
    return check


def mlflow(recipe: Recipe, uri: str) -> CheckResult:
    [check] = services.check_mlflow(again(recipe, f"tracking.uri={uri}"))
    return check


@pytest.mark.parametrize(
    ("health", "status"),
    [
        ({"commit_sha": "x", "tag_name": "2.17.0", "multi_user": False}, "passed"),
        ({"tag_name": "2.16.1"}, "passed"),
        ({"tag_name": "2.5.0"}, "failed"),
        ({"apiServerTagName": "2.4.1", "frontendTagName": "2.17.0"}, "failed"),
        ({"tag_name": "unknown", "multi_user": True}, "passed"),
    ],
)
def test_kubeflow_has_to_be_new_enough(server: Server, health: dict[str, Any], status: str) -> None:
    server.answers[HEALTHZ] = (200, json.dumps(health))

    check = kubeflow(f"http://127.0.0.1:{server.port}/")

    assert check.status == status
    assert str(health.get("tag_name") or health["apiServerTagName"]) in check.detail
    assert ("2.16" in check.remedy) == (status == "failed" or health.get("tag_name") == "unknown")


def test_kubeflow_behind_a_login_is_told(server: Server) -> None:
    server.answers[HEALTHZ] = (302, "")
    server.location = f"http://127.0.0.1:{server.port}/dex/auth"
    server.answers["/dex/auth"] = (200, "<form>")

    check = kubeflow(f"http://127.0.0.1:{server.port}")

    assert check.status == "failed"
    assert "wants a login" in check.remedy


@pytest.mark.parametrize("host", ["http://127.0.0.1:{port}", "ftp://127.0.0.1", "http://[bad"])
def test_kubeflow_that_cannot_be_reached_fails(closed_port: int, host: str) -> None:
    check = kubeflow(host.format(port=closed_port))

    assert check.status == "failed"
    assert "port-forward" in check.remedy


def test_kubeflow_is_found_by_the_variable_of_its_client(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kubeflow(None).status == "skipped"
    server.answers[HEALTHZ] = (200, json.dumps({"tag_name": "2.17.0"}))
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", f"127.0.0.1:{server.port}")
    assert kubeflow(None).status == "passed"
    server.answers[HEALTHZ] = (200, "<html>welcome</html>")
    assert "without its health" in kubeflow(None).detail


def test_mlflow_that_refuses_the_name_by_which_it_is_called(server: Server, wanted: Recipe) -> None:
    server.answers = {"/health": (200, "OK"), SEARCH: (200, "{}")}
    server.allowed_host = "localhost"

    check = mlflow(wanted, f"http://127.0.0.1:{server.port}")

    assert check.status == "failed"
    assert "Invalid Host header" in check.detail
    assert f"--allowed-hosts '127.0.0.1:{server.port}'" in check.remedy


def test_mlflow_with_accounts_needs_them(
    server: Server, wanted: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {"/health": (200, "OK"), SEARCH: (200, "{}")}
    server.login = "Basic dGVhbTpjYW5hcnktcGFzc3dvcmQ="  # team:canary-password
    without = mlflow(wanted, f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "team")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "canary-password")

    with_login = mlflow(wanted, f"http://127.0.0.1:{server.port}")

    assert without.status == "failed"
    assert "MLFLOW_TRACKING_USERNAME" in without.remedy
    assert (with_login.status, with_login.remedy) == ("passed", "")
    assert "canary" not in repr(with_login)


def test_mlflow_with_a_password_in_its_address_tells_none(
    server: Server, wanted: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {"/health": (200, "OK"), SEARCH: (500, "")}
    server.login = "Basic dGVhbTpjYW5hcnktcGFzc3dvcmQ="
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://team:canary-password@127.0.0.1:{server.port}")

    [check] = services.check_mlflow(again(wanted, "tracking.uri=null"))

    assert "answers 500" in check.detail
    assert "canary" not in repr(check)


def test_pods_without_a_login_of_wandb_fail_before_a_run(wanted: Recipe) -> None:
    without = mlflow(wanted, "wandb://az-team/az")
    secret = wanted.cluster.model_copy(update={"secrets": {"team": ("WANDB_API_KEY",)}})
    with_login = mlflow(wanted.model_copy(update={"cluster": secret}), "wandb://az-team/az")

    assert without.status == "failed"
    assert "cluster.secrets: {wandb: [WANDB_API_KEY]}" in without.remedy
    assert with_login.status == "passed"
    assert "Secret team" in with_login.detail


@pytest.mark.parametrize(
    ("uri", "status"),
    [
        ("sqlite:///mlflow.db", "failed"),
        ("tensorboard:/data/events", "failed"),
        ("tensorboard:/fsx/events", "passed"),
        ("arn:aws:sagemaker:eu-central-1:123456789012:mlflow-tracking-server/az", "skipped"),
        ("postgresql://mlflow.example/az", "skipped"),
        ("http://127.0.0.1:9", "skipped"),  # which does not answer
    ],
)
def test_a_tracker_without_a_web_address(wanted: Recipe, uri: str, status: str) -> None:
    claimed = again(wanted, "cluster.volumes=[{claim: fsx, path: /fsx}]")

    check = mlflow(claimed, uri)
    warnings = list(services.warn_of_tracker(again(claimed, f"tracking.uri={uri}")))

    assert check.status == status
    # A start is not refused for its tracker, but says so.
    expected = [replace(check, status="skipped")] if status == "failed" else []
    assert warnings == expected
