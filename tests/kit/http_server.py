"""A function that answers requests, behind a port of this machine."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    query: dict[str, str]
    headers: Message
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The content, where it is JSON."""
        is_json = "json" in self.headers.get("Content-Type", "json")
        body: dict[str, Any] = json.loads(self.content) if self.content and is_json else {}
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server answers; status 0 cuts the connection."""

    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """Instead of a body: not JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        """Answer one request."""
        parts = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers=self.headers,
            content=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )
        self.send(self.server.reply(request))  # type: ignore[attr-defined]  # set by `http_server`

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  the names that http.server calls

    def send(self, reply: Reply) -> None:
        """Send an answer."""
        time.sleep(reply.delay_s)
        if not reply.status:
            self.close_connection = True
            return
        kind = "text/html" if reply.text else "application/json"
        content = (reply.text or json.dumps(reply.body)).encode()
        with contextlib.suppress(ConnectionError):  # the client has given up
            self.send_response(reply.status)
            for name, text in ({"Content-Type": kind} | reply.headers).items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def http_server(reply: Callable[[Request], Reply], handler: type[Handler] = Handler) -> Iterator[int]:
    """The port of a server that answers for the length of a block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.reply = reply  # type: ignore[attr-defined]  # read by the handler
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
