"""A cluster as the doctor asks for it: objects by path, discovery, reviews."""

import functools
import json
from dataclasses import dataclass, field
from typing import Any

import kubernetes_validate

from tests.kit.fake_server import refused
from tests.kit.http_server import Reply

Object = dict[str, Any]
USER = "system:serviceaccount:kubeflow:pipeline-runner"


@dataclass
class Cluster:
    """What the server knows; tests change it before they ask."""

    objects: dict[str, Object] = field(default_factory=dict)  # Path -> answer.
    missing: dict[str, Object] = field(default_factory=dict)  # Path -> details of a 404, where they matter.
    forbidden: set[str] = field(default_factory=set)  # Paths that answer 403.
    denied: set[tuple[str, str]] = field(default_factory=set)
    """(verb, resource[/subresource]) that a review does not allow."""
    version: tuple[str, str, str] = ("1", "32", "v1.32.4")
    asked: list[tuple[str, str]] = field(default_factory=list)  # (method, path) of every request.

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

    def answer(self, method: str, path: str, query: dict[str, str], body: Object) -> Reply:
        """What an API server says."""
        self.asked.append((method, path))
        if method == "POST":
            return self._review(path, body)
        if path == "/version":
            major, minor, name = self.version
            return Reply(body={"major": major, "minor": minor, "gitVersion": name})
        if path in self.forbidden:
            return refused(403, f"{USER} cannot get {path}")
        found = self.objects.get(path)
        if found is None:
            return refused(404, "not found", self.missing.get(path))
        return Reply(body=_selected(found, query["labelSelector"]) if "labelSelector" in query else found)

    def _review(self, path: str, body: Object) -> Reply:
        if path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
            return Reply(status=201, body={**body, "status": {"userInfo": {"username": USER}}})
        assert path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        asked = body["spec"]["resourceAttributes"]
        _validate(json.dumps({**body, "spec": {"resourceAttributes": dict.fromkeys(asked, "x")}}))
        resource = "/".join(filter(None, [asked["resource"], asked.get("subresource")]))
        allowed = (asked["verb"], resource) not in self.denied
        return Reply(status=201, body={**body, "status": {"allowed": allowed}})


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
