"""Whether MLflow is there is known within a bounded time."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from anadil.runtime import reachable
from anadil.runtime.reachable import answers
from tests.kit.http_server import Reply, Request, http_server


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 401, 404, 500])
def test_whatever_a_server_answers_it_is_there_and_it_is_asked_without_the_password(status: int) -> None:
    seen: list[Request] = []

    def reply(request: Request) -> Reply:
        seen.append(request)
        return Reply(status=status)

    with http_server(reply) as port:
        assert answers(f"http://me:hunter2@127.0.0.1:{port}/mlflow?token=abc", 5)
    [request] = seen
    assert "Authorization" not in request.headers
    assert "token" not in request.query
    assert request.path.startswith("/mlflow/api/2.0/mlflow/experiments/")


def test_a_database_file_and_a_socket_of_this_machine_are_there() -> None:
    assert answers("sqlite:////nowhere/mlflow.db", 5)
    assert answers("postgresql://me@/db?host=/tmp", 5)


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "postgresql+psycopg2://u:p@127.0.0.1:9/db", "http://["]
)
def test_where_nobody_listens_nobody_is(uri: str) -> None:
    assert not answers(uri, 5)


def test_a_server_that_is_silent_costs_no_more_than_was_given(silent: str) -> None:
    started = time.monotonic()

    assert not answers(f"http://{silent}", 0.3)
    assert time.monotonic() - started < 5


def test_neither_does_one_whose_gateway_answers_and_whose_database_does_not() -> None:
    with http_server(lambda request: Reply(delay_s=5 if request.path.startswith("/api/") else 0)) as port:
        assert not answers(f"http://127.0.0.1:{port}", 0.3)


def test_so_does_one_that_answers_a_byte_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte starts a socket's time limit again; so does a resolver, which has none."""
    done = threading.Event()
    monkeypatch.setattr(reachable, "_answers", lambda uri, within_s: done.wait(10))
    started = time.monotonic()

    assert not answers("http://x", 0.2)
    assert time.monotonic() - started < 5
    done.set()


def test_an_arn_is_asked_for_where_sagemaker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    arn = "arn:aws:sagemaker:eu-central-1:123456789012:mlflow-tracking-server/az"

    assert reachable._request(arn).full_url.startswith("https://eu-central-1.experiments.sagemaker.aws/api/")
    monkeypatch.setenv(reachable.SAGEMAKER_VARIABLE, "http://127.0.0.1:9")
    assert not answers(arn, 5)
