"""HTTP of the fake Kubernetes API: JSON answers, faults, logs that go on and break off."""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.kit.fake_objects import TOKEN, kubeconfig, life
from tests.kit.http_server import Handler, Reply, Request, http_server

IDLE_S = 0.01


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

    def reply(request: Request) -> Reply:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return refused(401, "Unauthorized")
        kind = request.headers.get("Content-Type")
        assert request.method != "PATCH" or kind == "application/merge-patch+json"
        reply: Reply = cluster.answer(request.method, request.path, request.query, request.body)
        return reply

    with http_server(reply, type("Bound", (ClusterHandler,), {"cluster": cluster})) as port:
        path = folder / f"kubeconfig-{port}"
        path.write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{port}")), encoding="utf-8")
        yield path


class ClusterHandler(Handler):
    """One connection; logs go on until their container has ended."""

    cluster: ClassVar[Any]

    def log_or_answer(self) -> None:
        """Answer a GET."""
        parts = urlsplit(self.path)
        if parts.path.endswith("/log"):
            self._log(parts.path, dict(parse_qsl(parts.query)))
        else:
            self.answer()

    do_GET = log_or_answer  # noqa: N815  the name that http.server calls

    def _log(self, path: str, query: dict[str, str]) -> None:
        cluster = self.cluster
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
            self.send(problem)
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
