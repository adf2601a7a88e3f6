"""Stands before a real server: sees what a client sends, and answers some of it itself."""

import contextlib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

from tests.kit.http_server import Reply, Request, http_server


@contextlib.contextmanager
def proxy(
    server: str, instead: Callable[[Request], Reply | None] = lambda _: None
) -> Iterator[tuple[str, list[Request]]]:
    """The address of a proxy, and the requests that came."""
    seen: list[Request] = []

    def reply(request: Request) -> Reply:
        seen.append(request)
        return instead(request) or _passed_on(server, request)

    with http_server(reply) as port:
        yield f"http://127.0.0.1:{port}", seen


def _passed_on(server: str, request: Request) -> Reply:
    query = urllib.parse.urlencode(request.query)
    asked = urllib.request.Request(
        f"{server}{request.path}{f'?{query}' if query else ''}",
        data=request.content or None, method=request.method,
        headers={"Content-Type": request.headers.get("Content-Type", "application/json")},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return Reply(status=answer.status, text=answer.read().decode() or " ", headers=_kind(answer))
    except urllib.error.HTTPError as error:
        return Reply(status=error.code, text=error.read().decode() or " ", headers=_kind(error))


def _kind(answer: object) -> dict[str, str]:
    return {"Content-Type": answer.headers.get("Content-Type", "text/plain")}  # type: ignore[attr-defined]
