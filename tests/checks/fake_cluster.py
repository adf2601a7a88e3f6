"""A server that speaks the part of the Kubernetes REST protocol that is asked of it."""

import functools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml

Object = dict[str, Any]
TOKEN = "fake-cluster-token"
USER = "system:serviceaccount:kubeflow:pipeline-runner"


@dataclass
class Cluster:
    """What the server knows; tests change it before they ask."""

    objects: dict[str, Object] = field(default_factory=dict)
    """Path -> answer."""
    missing: dict[str, Object] = field(default_factory=dict)
    """Path -> what a 404 says besides, where it matters."""
    forbidden: set[str] = field(default_factory=set)
    """Paths that answer 403."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    """(verb, resource[/subresource]) that a review does not allow."""
    version: tuple[str, str, str] = ("1", "32", "v1.32.4")
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(method, path) of every request."""
    silent: bool = False
    """Whether it takes connections and says nothing."""
    port: int = 0

    def put(self, path: str, **content: Any) -> None:
        """Answer a path with an object whose metadata holds the last part of the path as its name."""
        content.setdefault("metadata", {}).setdefault("name", path.rsplit("/", 1)[-1])
        self.objects[path] = content
        listing = self.objects.setdefault(path.rsplit("/", 1)[0], {"items": []})
        listing.setdefault("items", []).append(content)

    def serve_group(self, group: str, version: str, *resources: str) -> None:
        """Answer the discovery of an API group."""
        versions = {"groupVersion": f"{group}/{version}", "version": version}
        self.objects[f"/apis/{group}"] = {
            "kind": "APIGroup", "name": group, "versions": [versions], "preferredVersion": versions,
        }  # fmt: skip
        self.objects[f"/apis/{group}/{version}"] = {
            "kind": "APIResourceList",
            "groupVersion": f"{group}/{version}",
            "resources": [{"name": name, "namespaced": True, "kind": "", "verbs": []} for name in resources],
        }

    def kubeconfig(self, folder: Path, namespace: str = "team") -> Path:
        """A file that leads here."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "fake", "user": {"token": TOKEN}}],
            "contexts": [
                {"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": namespace}}
            ],
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path


@contextmanager
def serving(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster behind a port of this machine."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._note()
            parts = urlsplit(self.path)
            if parts.path == "/version":
                major, minor, name = cluster.version
                self._answer(200, {"major": major, "minor": minor, "gitVersion": name})
                return
            if parts.path in cluster.forbidden:
                message = f"{USER} cannot get {parts.path}"
                self._answer(403, {"kind": "Status", "status": "Failure", "message": message})
                return
            found = cluster.objects.get(parts.path)
            if found is None:
                status = {"kind": "Status", "status": "Failure", "message": "not found"}
                self._answer(404, status | cluster.missing.get(parts.path, {}))
                return
            [selector] = parse_qs(parts.query).get("labelSelector", [""])
            self._answer(200, _selected(found, selector) if selector else found)

        def do_POST(self) -> None:
            self._note()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
                self._answer(201, {**body, "status": {"userInfo": {"username": USER}}})
                return
            assert self.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            asked = body["spec"]["resourceAttributes"]
            _validate(json.dumps({**body, "spec": {"resourceAttributes": dict.fromkeys(asked, "x")}}))
            resource = "/".join(filter(None, [asked["resource"], asked.get("subresource")]))
            allowed = (asked["verb"], resource) not in cluster.denied
            self._answer(201, {**body, "status": {"allowed": allowed}})

        def _note(self) -> None:
            cluster.asked.append((self.command, self.path))
            if cluster.silent:
                done.wait()

        def _answer(self, status: int, content: Object) -> None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, content = 401, {"kind": "Status", "status": "Failure", "message": "Unauthorized"}
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cluster.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield cluster
    finally:
        done.set()
        server.shutdown()
        server.server_close()


@functools.cache
def _validate(body: str) -> None:
    """As a server that refuses unknown fields; each form once, because it takes a tenth of a second."""
    kubernetes_validate.validate(json.loads(body), "1.31", strict=True)


def _selected(listing: Object, selector: str) -> Object:
    wanted = dict(pair.split("=") for pair in selector.split(","))
    items = [
        each for each in listing["items"] if wanted.items() <= each["metadata"].get("labels", {}).items()
    ]
    return {**listing, "items": items}
