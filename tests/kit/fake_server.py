"""HTTP of the fake Kubernetes API: JSON answers, faults, logs that go on and break off."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.kit.fake_objects import TOKEN, kubeconfig, life

IDLE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server answers; status 0 cuts the connection."""

    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """Instead of a body: not JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


def refused(status: int, message: str, details: dict[str, Any] | None = None, **headers: str) -> Reply:
    """An error as the API server words it."""
    body = {
        "kind": "Status",
        "status": "Failure",
        "message": message,
        "code": status,
        "details": details or {},
    }
    return Reply(
        status=status, body=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


@contextlib.contextmanager
def serving(cluster: Any, folder: Path) -> Iterator[Path]:
    """A fake cluster behind a port; the kubeconfig that leads there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.cluster = cluster  # type: ignore[attr-defined]  # read by the handler
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    path = folder / f"kubeconfig-{server.server_port}"
    path.write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{server.server_port}")), encoding="utf-8")
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if parts.path.endswith("/log"):
            self._log(parts.path, query)
        else:
            self._reply(parts.path, query)

    def do_POST(self) -> None:
        self._reply(urlsplit(self.path).path, {})

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        self._reply(urlsplit(self.path).path, {})

    def do_DELETE(self) -> None:
        self._reply(urlsplit(self.path).path, {})

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _reply(self, path: str, query: dict[str, str]) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        cluster: Any = self.server.cluster  # type: ignore[attr-defined]  # set by `serving`
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        reply = cluster.answer(self.command, path, query, body) if allowed else refused(401, "Unauthorized")
        if reply.delay_s:
            time.sleep(reply.delay_s)
        if not reply.status:
            self.close_connection = True
            return
        content = reply.text.encode() if reply.text else json.dumps(reply.body).encode()
        with contextlib.suppress(ConnectionError):  # the client has given up
            self.send_response(reply.status)
            for name, text in reply.headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _log(self, path: str, query: dict[str, str]) -> None:
        cluster: Any = self.server.cluster  # type: ignore[attr-defined]  # set by `serving`
        name = path.split("/")[-2]
        with cluster.changed:
            cluster.requests.append(("GET", path))
            cluster.changed.notify_all()
            pod = cluster.pods.get(name)
            problem = cluster._forbidden("get", "pods/log") or _no_log(cluster, pod, name, query)
            cut = (
                cluster.cuts.pop(0)
                if cluster.cuts and not problem and query.get("follow") == "true"
                else None
            )
        if problem:
            content = json.dumps(problem.body).encode()
            self.send_response(problem.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self._send(_pieces(cluster, pod, query), cut)

    def _send(self, pieces: Iterator[bytes], cut: Any) -> None:
        left = cut.after_bytes if cut else None
        for text in pieces:
            piece = text if left is None else text[:left]
            if cut and cut.before in text.decode():
                piece, left = b"", 0
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    self.close_connection = True  # in the midst of a line, without the last chunk
                    return
        self.wfile.write(b"0\r\n\r\n")


def _no_log(cluster: Any, pod: Any, name: str, query: dict[str, str]) -> Reply | None:
    if pod is None:
        return refused(404, f'pods "{name}" not found', {"name": name, "kind": "pods"})
    if query.get("previous") == "true" and life(pod, 1) not in cluster.logs:
        return refused(400, f'previous terminated container "pytorch" in pod "{name}" not found')
    if pod["status"]["phase"] == "Pending":
        return refused(400, f'container "pytorch" in pod "{name}" is waiting to start: ContainerCreating')
    return None


def _pieces(cluster: Any, pod: dict[str, Any], query: dict[str, str]) -> Iterator[bytes]:
    """Lines of a log as the kubelet sends them; with `follow` until the container has ended."""
    key = life(pod, 1 if query.get("previous") == "true" else 0)
    since = time.time() - float(query["sinceSeconds"]) if "sinceSeconds" in query else 0.0
    sent = 0
    while True:
        with cluster.changed:
            lines = list(cluster.logs.get(key, []))
            running = "running" in pod["status"]["containerStatuses"][0]["state"] and life(pod) == key
            is_there = cluster.pods.get(pod["metadata"]["name"]) is pod
        if sent == 0 and "tailLines" in query:
            sent = max(0, len(lines) - int(query["tailLines"]))
        for when, text in lines[sent:]:
            sent += 1
            if when >= since:
                stamp = f"{_stamp(when)} " if query.get("timestamps") == "true" else ""
                yield f"{stamp}{text}\n".encode()
        if query.get("follow") != "true" or not running or not is_there:
            return
        time.sleep(IDLE_S)


def _stamp(when: float) -> str:
    """RFC 3339 with nanoseconds, trailing zeros left out, as containerd writes it."""
    second = datetime.fromtimestamp(int(when), UTC).isoformat().replace("+00:00", "")
    digits = f"{int(when % 1 * 1_000_000) * 1_000:09d}".rstrip("0")
    return f"{second}.{digits}Z" if digits else f"{second}Z"
