"""Files of data sets on the Hugging Face hub: `hf://datasets/ORG/NAME@COMMIT/PATH`, read where they lie.

A commit never changes. What a listing says of it is kept for the life of the process.
Source: huggingface_hub, `HfApi.list_repo_tree`, `get_paths_info`, `dataset_info` and `hf_hub_url`.
"""

import functools
import logging
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from anadil.artifacts.hub_http import COPY, endpoint, is_of_hub, request
from anadil.artifacts.ranged import PIECE_BYTES, RangedFile, check_place
from anadil.artifacts.uri import Count
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError, RecipeError

log = logging.getLogger(__name__)

SCHEME = "hf://"
DATASETS = f"{SCHEME}datasets/"
FORM = f"{DATASETS}ORG/NAME@COMMIT/PATH"
ADDRESS = re.compile(
    re.escape(DATASETS) + r"(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert/[\w.-]+|pr/\d+)(?![^/])|[^/]*))?(?:/(?P<path>.*))?",
    re.ASCII | re.DOTALL,
)
"""As the library's own `parse_hf_uri` reads it; of its revisions those of pull requests and conversions hold slashes."""
COMMIT = re.compile("[0-9a-f]{40}")
GLOB = re.compile(r"[*?[]")
TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")


class HubAddress(NamedTuple):
    """A data set at a commit, and a path or glob in it."""

    repo: str
    commit: str
    path: str

    def uri(self, path: str) -> str:
        """The address of a file of the same data set."""
        return f"{DATASETS}{self.repo}@{self.commit}/{path}"


class HubFile(NamedTuple):
    """A file of a commit, or a folder, which has no size."""

    content_id: str
    """SHA-256 of a large file, else the id of its Git blob."""
    size: int | None


class HubRanges:
    """Pieces of one file; see `Ranges`."""

    def __init__(self, uri: str, url: str, version: str) -> None:
        """Ask nothing yet; `version` is the id of the content and its size, joined by `-`."""
        self._uri = uri
        self._url = url
        self._tag, _, size = version.rpartition("-")
        self.size = int(size)
        self._signed = ""
        """Address in the store of large files."""
        self._tags: dict[str, str] = {}
        """Tag of the content by host, which stays the same."""

    def fetch(self, start: int, num_bytes: int) -> bytes:
        """Return a piece; see `Ranges.fetch`."""
        url, self._signed = self._signed or self._url, ""
        headers = {"Range": f"bytes={start}-{start + num_bytes - 1}"}
        return request(self._uri, url, partial(self._read, start, num_bytes), headers=headers)

    def _read(self, start: int, num_bytes: int, response: Any) -> bytes:
        place = response.headers.get("Content-Range", "")
        total = TOTAL.fullmatch(place)
        # The hub's own name for the content: SHA-256 of a large file.
        links = [each.headers.get("X-Linked-Etag", "") for each in (*response.history, response)]
        content_id = next((_plain(each) for each in links if each), self._tag)
        tag = _plain(response.headers.get("ETag", ""))
        first_tag = self._tags.setdefault(urlsplit(str(response.url)).netloc, tag)
        if content_id != self._tag or first_tag != tag or (total and int(total[1]) != self.size):
            raise IntegrityError(
                f"{self._uri}: is not the file that the commit names ({content_id}, {place}; it names {self._tag}, {self.size} "
                "bytes); check the mirror (HF_ENDPOINT), and run again"
            )
        whole = response.headers.get("Content-Length") == str(num_bytes)
        check_place(self._uri, place, start, is_complete=whole)
        data: bytes = response.read()
        if not is_of_hub(response.url):
            self._signed = str(response.url)
        return data


class HubStore:
    """Files of data sets on the hub; credentials come from the environment, as huggingface_hub finds them."""

    def sizes(self, pattern: str) -> dict[str, int]:
        """Return the bytes of each file of a path, folder or glob (`**` goes down), by its URI, in order."""
        address = hub_address(pattern)
        return {address.uri(path): size for path, size in sorted(_matching(address))}

    def size(self, uri: str) -> int:
        """Bytes of one file."""
        return int(self.version(uri).rpartition("-")[2])

    def version(self, uri: str) -> str:
        """Id of the content and its size."""
        address = hub_address(uri)
        file = _entry(address)
        if file is None or file.size is None:
            raise DataError(f"{uri}: no such file at this commit; check the path")
        return f"{file.content_id}-{file.size}"

    def fingerprint(self, uri: str) -> str:
        """The same; commit and path stand in the URI."""
        return self.version(uri)

    def ranges(self, uri: str, version: str) -> HubRanges:
        """Return the source of the pieces of one file."""
        address = hub_address(uri)
        url = f"{endpoint()}/datasets/{address.repo}/resolve/{address.commit}/{quote(address.path)}"
        return HubRanges(uri, url, version)

    def part(self, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        """Return some bytes of a file and its size; a negative start counts from its end."""
        size = self.size(uri)
        with self._open(uri) as stream:
            stream.seek(max(0, size + start) if start < 0 else start)
            return stream.read(num_bytes), size

    def download(self, uri: str, path: Path, count: Count | None = None) -> None:
        """Copy one file beside, then rename it."""
        draft = path.with_name(f"{path.name}.partial")
        with self._open(uri) as source, draft.open("wb") as file:
            while piece := source.read(PIECE_BYTES):
                file.write(piece)
                if count is not None:
                    count(len(piece))
        draft.replace(path)

    def _open(self, uri: str) -> BinaryIO:
        return RangedFile(uri, functools.partial(self.ranges, uri, self.version(uri))).open("rb", 0)


def hub_address(uri: str) -> HubAddress:
    """Take an address apart."""
    parts = ADDRESS.fullmatch(uri)
    if not parts:
        raise RecipeError(f"{uri}: is not the address of a data set on the hub; write {FORM}")
    repo, revision, path = parts["repo"], unquote(parts["revision"] or ""), parts["path"] or ""
    if not COMMIT.fullmatch(revision):
        where = f"{DATASETS}{repo}@{{}}{'/' if path else ''}{path}"
        raise RecipeError(f"{uri}: {_not_pinned(uri, repo, revision, where)}")
    return HubAddress(repo, revision, path.strip("/"))


def data_sets(uris: Sequence[str]) -> list[dict[str, str]]:
    """Return name, commit and licence of each data set among files; the licence is empty where its card states none."""
    addresses = (hub_address(uri) for uri in uris if uri.startswith(SCHEME))
    named = dict.fromkeys((address.repo, address.commit) for address in addresses)
    return [{"name": repo, "commit": commit, "licence": _licence(repo, commit)} for repo, commit in named]


def _licence(repo: str, commit: str) -> str:
    info = _info(f"{DATASETS}{repo}@{commit}", repo, commit)
    if (name := str(info.get("id") or repo)) != repo:
        log.warning("%s%s is called %s now; name it so", DATASETS, repo, name)
    card = info.get("cardData")
    stated = card.get("license") if isinstance(card, dict) else None
    names = stated if isinstance(stated, list) else [stated]
    return ", ".join(" ".join(each.split()) for each in names if isinstance(each, str))


def _not_pinned(uri: str, repo: str, revision: str, where: str) -> str:
    """Return what is wrong with a revision, and the commit that it stands for if the hub says that."""
    fault = f"{revision!r} is not a commit and can change" if revision else "names no commit"
    try:
        commit = str(_info(uri, repo, revision or "main").get("sha") or "")
    except DataError:
        raise
    except AnadilError as error:
        log.debug("the commit of %s is not known: %s", uri, error)
        commit = ""
    remedy = f"write {where.format(commit)}" if commit else f"write @ and its 40 hex digits, {FORM}"
    return f"{fault}; {remedy}"


def _info(uri: str, repo: str, revision: str) -> dict[str, Any]:
    url = f"{endpoint()}/api/datasets/{repo}/revision/{quote(revision, safe='')}"
    info = request(uri, url, functools.partial(_json, uri))
    return info if isinstance(info, dict) else {}


@functools.cache
def _known(_endpoint: str, _repo: str, _commit: str) -> dict[str, HubFile]:
    """Return the entries of a commit that listings have named, to be filled."""
    return {}


def _known_of(address: HubAddress) -> dict[str, HubFile]:
    return _known(endpoint(), address.repo, address.commit)


def _matching(address: HubAddress) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file that a path, folder or glob names."""
    fixed = GLOB.split(address.path, maxsplit=1)[0]
    if fixed == address.path:
        entry = _entry(address) if address.path else HubFile("", None)
        if entry is None:
            return
        if entry.size is not None:
            yield address.path, entry.size
            return
        folder, pattern, rest = address.path, ["**"], "**"
    else:
        folder = fixed.rpartition("/")[0]
        rest = address.path.removeprefix(folder).lstrip("/")
        pattern = rest.split("/")
    is_deep = "/" in rest or "**" in rest
    for path, file in _list(address, folder, is_deep=is_deep):
        below = path.removeprefix(folder).lstrip("/")
        if file.size is not None and (below == rest or _fits(below.split("/"), pattern)):
            yield path, file.size


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path fits a glob: `*` stays within a folder, `**` stands for any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _entry(address: HubAddress) -> HubFile | None:
    """Return what stands at a path; None where nothing does."""
    known = _known_of(address)
    if address.path not in known:
        url = f"{endpoint()}/api/datasets/{address.repo}/paths-info/{address.commit}"
        uri = address.uri(address.path)
        read = functools.partial(_json, uri)
        data = {"paths": [address.path], "expand": "false"}
        known.update(_entries(uri, request(uri, url, read, method="POST", data=data)))
    return known.get(address.path)


def _list(address: HubAddress, folder: str, *, is_deep: bool) -> Iterator[tuple[str, HubFile]]:
    """Yield the entries of a folder, or all below it, page by page."""
    known, uri = _known_of(address), address.uri(folder)
    below = f"/{quote(folder, safe='')}" if folder else ""
    url = f"{endpoint()}/api/datasets/{address.repo}/tree/{address.commit}{below}"
    arguments: dict[str, Any] = {"params": {"recursive": str(is_deep).lower(), "expand": "false"}}
    while url:

        def read(response: Any) -> tuple[Any, str]:
            return _json(uri, response), str(response.links.get("next", {}).get("url") or "")

        page, following = request(uri, url, read, **arguments)
        entries = dict(_entries(uri, page))
        known.update(entries)
        yield from entries.items()
        if following == url:  # such as of a proxy that knows addresses without their query
            raise _not_hub(uri)
        url, arguments = following, {}  # they stand in the address of the next page


def _entries(uri: str, page: Any) -> Iterator[tuple[str, HubFile]]:
    try:
        for each in page:
            large = each.get("lfs") or {}
            content_id = str(large.get("oid") or each["oid"])
            is_file = each["type"] == "file"
            yield str(each["path"]), HubFile(content_id, int(each["size"]) if is_file else None)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _not_hub(uri) from None


def _json(uri: str, response: Any) -> Any:
    response.read()
    try:
        return response.json()
    except ValueError:
        raise _not_hub(uri) from None


def _not_hub(uri: str) -> PreflightError:
    return PreflightError(
        f"{uri}: {endpoint()} does not answer as the hub does; check HF_ENDPOINT and the proxy, {COPY}"
    )


def _plain(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')
