"""A server that speaks the part of Kubeflow Pipelines' REST API that we use, and checks each word.

Bodies may hold only fields of the models that `kfp-server-api` was generated with from the
server's own definition, every answer goes through the same models, and an uploaded pipeline is
read as the server reads it, with its own message types.
"""

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from functools import partial
from typing import Any

import kfp_server_api  # type: ignore[import-untyped]  # generated, without types
import yaml
from google.protobuf import json_format  # type: ignore[import-untyped]  # its stubs are a package of their own
from kfp.kubernetes import kubernetes_executor_config_pb2 as kubernetes
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.kit.http_server import Reply, Request, http_server

API = "/apis/v2beta1"
NOW = "2026-01-01T00:00:00+00:00"
# Numbers of gRPC's codes. Source: google/rpc/code.proto.
CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 500: 13, 503: 14}
LISTS = {"page_token", "page_size", "sort_by", "filter", "namespace"}
Json = dict[str, Any]


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class FakeKubeflow:
    """What the server holds; tests read and change it."""

    version: str = "2.17.0"
    multi_user: bool = False
    token: str | None = None
    """Bearer token that a request needs."""
    page: int = 2
    """Most items of a page, however many are asked for."""
    login_page: bool = False
    experiments: list[Json] = field(default_factory=list)
    pipelines: list[Json] = field(default_factory=list)
    pipeline_versions: list[Json] = field(default_factory=list)
    runs: list[Json] = field(default_factory=list)
    recurring_runs: list[Json] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    failures: list[tuple[str, int]] = field(default_factory=list)
    """`METHOD path` (a pattern) and the status that the next such request gets, once."""
    states: list[str] = field(default_factory=list)
    """States that the next looks at a run find."""
    url: str = ""

    def sent(self, method: str, path: str) -> list[Json]:
        """Bodies of the requests."""
        found = (each for each in self.requests if (each.method, each.path) == (method, API + path))
        return [each.body for each in found]

    def count(self) -> Counter[str]:
        """How often each changing request was sent."""
        return Counter(
            f"{each.method} {each.path.removeprefix(API)}" for each in self.requests if each.method != "GET"
        )

    def answer(self, request: Request) -> Any:
        """What a request gets."""
        for place, (pattern, status) in enumerate(self.failures):
            if re.fullmatch(pattern, f"{request.method} {request.path.removeprefix(API)}"):
                del self.failures[place]
                raise Refusal(status, f"told to fail with {status}")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refusal(401, "Request header error: there is no user identity header.")
        for method, pattern, handle in self._routes():
            found = re.fullmatch(API + pattern, request.path)
            if found and method == request.method:
                return handle(self, request, *found.groups())
        raise Refusal(404, f"{request.method} {request.path}: Not Found")

    @staticmethod
    def _routes() -> list[tuple[str, str, Callable[..., Any]]]:
        return [
            ("GET", "/healthz", FakeKubeflow._health),
            ("GET", "/(experiments|pipelines|runs|recurringruns)", FakeKubeflow._list),
            ("GET", "/pipelines/([^/]+)/versions", FakeKubeflow._list_versions),
            ("GET", "/runs/([^/:]+)", FakeKubeflow._get_run),
            ("POST", "/experiments", FakeKubeflow._create_experiment),
            ("POST", "/pipelines", FakeKubeflow._create_pipeline),
            ("POST", "/pipelines/upload_version", FakeKubeflow._upload_version),
            ("POST", "/runs", FakeKubeflow._create_run),
            ("POST", "/recurringruns", FakeKubeflow._create_recurring_run),
            ("DELETE", "/recurringruns/([^/:]+)", FakeKubeflow._delete_recurring_run),
            ("POST", "/recurringruns/([^/:]+):(enable|disable)", FakeKubeflow._switch_recurring_run),
        ]

    def _health(self, request: Request) -> Any:
        if self.login_page:
            return "<html><title>dex: log in</title></html>"
        # Recorded from backend/src/apiserver/main.go; the generated model knows less.
        return {
            "commit_sha": "0" * 40, "tag_name": self.version, "multi_user": self.multi_user,
            "pipeline_store": "database",
        }  # fmt: skip

    def _list(self, request: Request, word: str) -> Json:
        more = {"experiment_id"} if word in ("runs", "recurringruns") else set()
        word = word.replace("recurringruns", "recurring_runs")
        items: list[Json] = getattr(self, word)
        if "experiment_id" in request.query:
            items = [item for item in items if item["experiment_id"] == request.query["experiment_id"]]
        if request.query.get("sort_by") == "created_at desc":
            items = items[::-1]
        return self._paged(request, items, word, LISTS | more)

    def _list_versions(self, request: Request, pipeline: str) -> Json:
        items = [item for item in self.pipeline_versions if item["pipeline_id"] == pipeline]
        return self._paged(request, items, "pipeline_versions", LISTS - {"namespace"})

    def _paged(self, request: Request, items: list[Json], word: str, known: set[str]) -> Json:
        if unknown := set(request.query) - known:
            raise Refusal(400, f"unknown query parameters {unknown}")
        if (
            self.multi_user
            and "namespace" in known
            and not {"namespace", "experiment_id"} & set(request.query)
        ):
            raise Refusal(400, "Invalid input error: In multi-user mode, a namespace is needed")
        for predicate in _predicates(request.query.get("filter", "")):
            items = [item for item in items if item[predicate["key"]] == predicate["stringValue"]]
        start = int(request.query.get("page_token") or 0)
        size = min(self.page, int(request.query["page_size"]))
        name = f"V2beta1List{''.join(part.capitalize() for part in word.split('_'))}Response"
        wire = getattr(kfp_server_api, name).attribute_map[word]
        answer: Json = {wire: items[start : start + size]} if items else {}
        if start + size < len(items):
            answer["next_page_token"] = str(start + size)
        return _checked(name, answer)

    def _get_run(self, request: Request, run: str) -> Json:
        found = _by_id(self.runs, "run_id", run)
        if self.states:
            found["state"] = self.states.pop(0)
        return _checked("V2beta1Run", found)

    def _create(self, model: str, word: str, body: Json, **more: str) -> Json:
        _check_fields(model, body)
        made = {**body, f"{word}_id": str(uuid.uuid4()), "created_at": NOW, **more}
        getattr(self, f"{word}s").append(made)
        return _checked(model, made)

    def _create_experiment(self, request: Request) -> Json:
        _refuse_second(self.experiments, request.body)
        return self._create("V2beta1Experiment", "experiment", request.body)

    def _create_pipeline(self, request: Request) -> Json:
        _refuse_second(self.pipelines, request.body)
        return self._create("V2beta1Pipeline", "pipeline", request.body)

    def _upload_version(self, request: Request) -> Json:
        query = request.query
        if unknown := set(query) - {"name", "display_name", "pipelineid", "description", "tags"}:
            raise Refusal(400, f"unknown query parameters {unknown}")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", query["name"]):
            raise Refusal(400, f"{query['name']}: no RFC 1123 name")
        _by_id(self.pipelines, "pipeline_id", query["pipelineid"])
        of_same = [item for item in self.pipeline_versions if item["pipeline_id"] == query["pipelineid"]]
        _refuse_second(of_same, {"display_name": query["name"]})
        parsed = message_from_bytes(
            f"Content-Type: {request.headers['Content-Type']}\n\n".encode() + request.content
        )
        [part] = [each for each in parsed.walk() if not each.is_multipart()]
        assert part.get_param("name", header="content-disposition") == "uploadfile"
        made = {
            "pipeline_id": query["pipelineid"], "pipeline_version_id": str(uuid.uuid4()),
            "name": query["name"], "display_name": query["name"], "description": query["description"],
            "created_at": NOW, "pipeline_spec": read_as_the_server(_text(part)),
        }  # fmt: skip
        self.pipeline_versions.append(made)
        return _checked("V2beta1PipelineVersion", made)

    def _create_run(self, request: Request) -> Json:
        self._check_reference(request.body)
        return self._create("V2beta1Run", "run", request.body, state="PENDING")

    def _create_recurring_run(self, request: Request) -> Json:
        self._check_reference(request.body)
        if not 1 <= int(request.body["max_concurrency"]) <= 10:
            raise Refusal(400, "max_concurrency")
        return self._create("V2beta1RecurringRun", "recurring_run", request.body, status="ENABLED")

    def _delete_recurring_run(self, request: Request, name: str) -> Json:
        self.recurring_runs.remove(_by_id(self.recurring_runs, "recurring_run_id", name))
        return {}

    def _switch_recurring_run(self, request: Request, name: str, verb: str) -> Json:
        _by_id(self.recurring_runs, "recurring_run_id", name)["mode"] = verb.upper()
        return {}

    def _check_reference(self, body: Json) -> None:
        reference = body["pipeline_version_reference"]
        _by_id(self.experiments, "experiment_id", body["experiment_id"])
        version = _by_id(self.pipeline_versions, "pipeline_version_id", reference["pipeline_version_id"])
        assert version["pipeline_id"] == reference["pipeline_id"]
        spec = version["pipeline_spec"]["pipeline_spec"]
        known = spec["root"]["inputDefinitions"]["parameters"]
        if unknown := set(body["runtime_config"]["parameters"]) - set(known):
            raise Refusal(400, f"the pipeline has no parameters {unknown}")


def _text(part: Message) -> str:
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content.decode()


def _by_id(items: list[Json], key: str, value: str) -> Json:
    for item in items:
        if item[key] == value:
            return item
    raise Refusal(404, f"{key} {value} not found.")


def _refuse_second(items: list[Json], body: Json) -> None:
    if any(item["display_name"] == body["display_name"] for item in items):
        raise Refusal(409, f"Already exist error: The name {body['display_name']} already exist.")


def _predicates(text: str) -> list[Json]:
    if not text:
        return []
    content = json.loads(text)
    assert set(content) == {"predicates"}
    for predicate in content["predicates"]:
        assert set(predicate) == {"operation", "key", "stringValue"}
        assert predicate["operation"] in (1, "EQUALS")
    return list(content["predicates"])


def _check_fields(model: str, body: Any) -> None:
    """Refuse what the model of `kfp-server-api` does not have, at any depth."""
    kind = getattr(kfp_server_api, model, None)
    if kind is None or not hasattr(kind, "attribute_map") or not isinstance(body, dict):
        return
    types = {wire: kind.openapi_types[name] for name, wire in kind.attribute_map.items()}
    for key, value in body.items():
        if key not in types:
            raise Refusal(400, f'proto: (line 1:2): unknown field "{key}" in {model}')
        if types[key] == "str" and not isinstance(value, str):
            raise Refusal(400, f"{model}.{key}: no text: {value!r}")
        if types[key] == "bool" and not isinstance(value, bool):
            raise Refusal(400, f"{model}.{key}: no boolean: {value!r}")
        _check_fields(types[key], value)


def _checked(model: str, answer: Json) -> Json:
    """The answer, which has to be the same after a way through the generated model."""

    class Response:
        data = json.dumps(answer)

    client = kfp_server_api.ApiClient()
    again = client.sanitize_for_serialization(client.deserialize(Response, model))
    assert again == answer, (again, answer)
    return answer


def read_as_the_server(text: str) -> Json:
    """Both documents as the server reads them: every field has to be one of its messages."""
    spec, *platforms = yaml.safe_load_all(text)
    json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    for platform in platforms:
        json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
        for executor in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
            json_format.ParseDict(executor, kubernetes.KubernetesExecutorConfig())
    return {"pipeline_spec": spec, "platform_spec": platforms[0] if platforms else {}}


@contextmanager
def fake_kubeflow(**options: Any) -> Iterator[FakeKubeflow]:
    """A server on this machine for the length of a block."""
    fake = FakeKubeflow(**options)
    with http_server(partial(_reply, fake)) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake


def _reply(fake: FakeKubeflow, request: Request) -> Reply:
    fake.requests.append(request)
    try:
        answer = fake.answer(request)
    except Refusal as error:
        # As grpc-gateway writes an error.
        body = {"error": str(error), "code": CODES[error.status], "message": str(error), "details": []}
        return Reply(status=error.status, body=body)
    except (AssertionError, LookupError, TypeError, ValueError, json_format.Error) as error:
        body = {"message": f"the fake itself failed: {error!r}", "code": 13, "details": []}
        return Reply(status=500, body=body)
    return Reply(text=answer) if isinstance(answer, str) else Reply(body=answer)
