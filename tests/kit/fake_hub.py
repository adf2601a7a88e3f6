"""A hub of data sets behind two ports of this machine: its API, and the store of large files that it sends readers on to.

Paths, JSON and headers are those that huggingface_hub asks for and reads: `HfApi.list_repo_tree`, `get_paths_info`,
`dataset_info`, `hf_hub_url` and `hf_raise_for_status`.
"""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from urllib.parse import quote, unquote

import pytest
from huggingface_hub import HfFileSystem

from anadil.artifacts import hub_files, ranged
from tests.kit.http_server import Handler, Reply, Request, http_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/texts"
ROOT = f"hf://datasets/{REPO}@{COMMIT}"
PAGE = 1000
"""Entries of a page of a listing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Reply):
    """An answer of bytes."""

    content: bytes = b""
    sent: int | None = None
    """Bytes after which the connection ends; None: all."""


class _Handler(Handler):
    def send(self, reply: Reply) -> None:
        if not isinstance(reply, Answer) or not reply.status:
            super().send(reply)
            return
        with contextlib.suppress(ConnectionError):
            self.send_response(reply.status)
            for name, text in reply.headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content[: reply.sent])
        if reply.sent is not None:
            self.close_connection = True


Fault = Callable[[Request, Reply], Reply]


@dataclass(kw_only=True)
class FakeHub:
    """Data sets with one commit each, and what is asked of them."""

    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    """Paths whose bytes lie in the store."""
    card: dict[str, object] = field(default_factory=dict)
    renamed: str = ""
    """Former name of the data set."""
    token: str = ""
    """Token that the data set asks for."""
    faults: list[Fault] = field(default_factory=list)
    """Faults of the next answers of the API, each used once."""
    store_faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Requests to the API."""
    store_requests: list[Request] = field(default_factory=list)
    page: int = PAGE
    url: str = ""
    store_url: str = ""

    def put(self, path: str, content: bytes, *, large: bool = False) -> str:
        """Add a file; return its address."""
        self.files[path] = content
        if large:
            self.large.add(path)
        return f"{ROOT}/{path}"

    def warm(self) -> None:
        """Let the library ask what it asks once in a process, so that faults meet the bytes of a file."""
        files = HfFileSystem(endpoint=self.url)
        for path in self.files:
            files.info(f"{ROOT}/{path}")

    def bytes_sent(self) -> int:
        """Bytes of files that were asked for by ranges."""
        spans = [
            re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
            for request in (*self.requests, *self.store_requests)
            if "/api/" not in request.path and not any(request.path.endswith(path) for path in self.large)
        ]
        return sum(int(span[2]) - int(span[1]) + 1 for span in spans if span)

    def reply(self, request: Request) -> Reply:
        """Answer as the API does."""
        self.requests.append(request)
        answer = self._api(request)
        return self.faults.pop(0)(request, answer) if self.faults else answer

    def store_reply(self, request: Request) -> Reply:
        """Answer as the store does."""
        self.store_requests.append(request)
        path = next(path for path in self.large if _oid(self.files[path], large=True) in request.path)
        answer = of_range(request, self.files[path], {"ETag": '"of-the-store"'})
        return self.store_faults.pop(0)(request, answer) if self.store_faults else answer

    def _api(self, request: Request) -> Reply:
        repo = re.match(r"/(?:api/)?datasets/([^/]+/[^/]+)", request.path)
        if self.renamed and repo and repo[1] == self.renamed:
            query = "?" + "&".join(f"{key}={quote(each)}" for key, each in request.query.items())
            place = request.path.replace(self.renamed, REPO, 1) + (query if request.query else "")
            return Reply(status=307, headers={"Location": place})
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return refusal(401, "", "Invalid username or password.")
        if not repo or repo[1] != REPO:
            return refusal(404, "RepoNotFound", "Repository not found")
        api, _, rest = request.path.partition(f"{REPO}/")
        kind, _, rest = rest.partition("/")
        revision, _, path = rest.partition("/")
        if unquote(revision) not in (COMMIT, "main", "refs/convert/parquet"):
            return refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api.startswith("/api/"):
            routes = {"revision": self._revision, "paths-info": self._paths_info, "tree": self._tree}
            return routes[kind](request, unquote(path))
        return self._resolve(request, unquote(path))

    def _revision(self, request: Request, path: str) -> Reply:
        return Reply(body={"id": REPO, "sha": COMMIT, "cardData": self.card})

    def _paths_info(self, request: Request, path: str) -> Reply:
        fields = [each.partition("=") for each in request.content.decode().split("&")]
        paths = [unquote(value.replace("+", " ")) for key, _, value in fields if key == "paths"]
        return _listing([self._entry(each) for each in paths if self._is_there(each)])

    def _tree(self, request: Request, folder: str) -> Reply:
        if not self._is_there(folder):
            return refusal(404, "EntryNotFound", f"{folder} does not exist on {COMMIT}")
        root = f"{folder}/" if folder else ""
        below = [path.removeprefix(root) for path in sorted(self.files) if path.startswith(root)]
        folders = {
            "/".join(path.split("/")[:depth]) for path in below for depth in range(1, path.count("/") + 1)
        }
        names = sorted([*below, *folders])
        if request.query.get("recursive") != "true":
            names = [name for name in names if "/" not in name]
        start = int(request.query.get("cursor", "0"))
        answer = _listing([self._entry(root + name) for name in names[start : start + self.page]])
        if start + self.page >= len(names):
            return answer
        query = f"recursive={request.query['recursive']}&cursor={start + self.page}"
        link = f'<{self.url}{quote(request.path, safe="/%")}?{query}>; rel="next"'
        return Answer(content=answer.content, headers={**answer.headers, "Link": link})

    def _resolve(self, request: Request, path: str) -> Reply:
        if path not in self.files:
            return refusal(404, "EntryNotFound", "Entry not found")
        content, large = self.files[path], path in self.large
        heads = {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(content, large=False)}"'}
        if not large:
            return of_range(request, content, heads)
        oid = _oid(content, large=True)
        place = f"{self.store_url}/{oid}?X-Amz-Signature=secret-signature"
        linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content)), "Location": place}
        return Reply(status=302, headers={**heads, **linked})

    def _is_there(self, path: str) -> bool:
        return not path or path in self.files or any(each.startswith(f"{path}/") for each in self.files)

    def _entry(self, path: str) -> dict[str, object]:
        if path not in self.files:
            return {"type": "directory", "oid": "f" * 40, "size": 0, "path": path}
        content = self.files[path]
        entry = {"type": "file", "oid": _oid(content, large=False), "size": len(content), "path": path}
        if path in self.large:
            large = {"oid": _oid(content, large=True), "size": len(content), "pointerSize": 134}
            entry |= {"lfs": large, "xetHash": "e" * 64}
        return entry


def refusal(status: int, code: str, said: str, headers: dict[str, str] | None = None) -> Reply:
    """An answer that the hub refuses with."""
    heads = {"X-Error-Code": code, "X-Error-Message": said, **(headers or {})}
    return Reply(status=status, headers=heads, body={"error": said})


def of_range(request: Request, content: bytes, headers: dict[str, str]) -> Reply:
    """The range of a file that is asked for."""
    span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
    if not span:
        return Answer(content=content, headers=headers)
    start, end = int(span[1]), min(int(span[2]) + 1, len(content))
    if start >= len(content):
        return Answer(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
    place = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}", "Accept-Ranges": "bytes"}
    return Answer(status=206, content=content[start:end], headers={**headers, **place})


def cut(request: Request, reply: Reply) -> Reply:
    """An answer whose connection ends half-way."""
    assert isinstance(reply, Answer)
    return Answer(
        status=reply.status, content=reply.content, headers=reply.headers, sent=len(reply.content) // 2
    )


def _oid(content: bytes, *, large: bool) -> str:
    blob = b"blob %d\0%s" % (len(content), content)
    return hashlib.sha256(content).hexdigest() if large else hashlib.sha1(blob).hexdigest()


def _listing(entries: list[dict[str, object]]) -> Answer:
    return Answer(content=json.dumps(entries).encode(), headers={"Content-Type": "application/json"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that HF_ENDPOINT names."""
    fake = FakeHub()
    with http_server(fake.reply, _Handler) as api, http_server(fake.store_reply, _Handler) as store:
        fake.url, fake.store_url = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{store}"
        hub_files._known.cache_clear()  # a port may come twice
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        clock = SimpleNamespace(sleep=lambda _: None, time=time.time, monotonic=time.monotonic)
        monkeypatch.setattr("huggingface_hub.utils._http.time", clock)
        monkeypatch.setattr(ranged, "PAUSE_S", 0.0)
        yield fake
