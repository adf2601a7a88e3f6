"""Files of data sets on the Hugging Face hub: `hf://datasets/ORG/NAME@COMMIT/PATH`, read where they lie.

A commit never changes. What a listing says of it is kept for the life of the process, and bytes that were read from
first to last are compared with the digest that the listing has.
"""

import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from anadil.artifacts.ranged import PIECE_BYTES, RangedFile
from anadil.artifacts.uri import Count
from anadil.core.errors import (
    AnadilError,
    DataError,
    IntegrityError,
    PreflightError,
    RecipeError,
    RetryableError,
)
from anadil.core.files import atomic_file
from anadil.core.install import install
from anadil.core.retry import retried

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger(__name__)

SCHEME = "hf://"
DATASETS = f"{SCHEME}datasets/"
FORM = f"{DATASETS}ORG/NAME@COMMIT/PATH"
HUB = "https://huggingface.co"
ADDRESS = re.compile(
    re.escape(DATASETS) + r"(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert/[\w.-]+|pr/\d+)(?![^/])|[^/]*))?(?:/(?P<path>.*))?",
    re.ASCII | re.DOTALL,
)
"""As the library's own `parse_hf_uri` reads it; of its revisions those of pull requests and conversions hold slashes."""
COMMIT = re.compile("[0-9a-f]{40}")
GLOB = re.compile(r"[*?[]")
COPY = "or copy the files to a disk or s3:// and name them there"
MAX_PAGES = 10_000
"""Pages of a listing. The hub's have 1,000 entries."""
DOWNLOADS = 2
"""Times that a copy is fetched whose bytes are not those of the commit."""


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
    """Pieces of one file, which the library's file system fetches; see `Ranges`."""

    def __init__(self, uri: str, version: str) -> None:
        """Ask nothing yet; `version` is the id of the content and its size, joined by `-`."""
        self._uri = uri
        self._content_id, _, size = version.rpartition("-")
        self.size = int(size)
        self._stream: Any = None
        self._num_hashed = 0
        self._digest = _digest_of(version)

    def fetch(self, start: int, num_bytes: int) -> bytes:
        """Return a piece; compare the digest with the last one of a file that is read in order."""
        with _hub_errors(self._uri):
            if self._stream is None:
                from huggingface_hub import HfFileSystem

                files = HfFileSystem(endpoint=endpoint())
                self._stream = files.open(self._uri, "rb", PIECE_BYTES, cache_type="none", size=self.size)
            self._stream.seek(start)
            data: bytes = self._stream.read(num_bytes)
        if start == self._num_hashed and len(data) == num_bytes:
            self._digest.update(data)
            self._num_hashed += num_bytes
            if self._num_hashed == self.size and self._digest.hexdigest() != self._content_id:
                raise IntegrityError(
                    f"{self._uri}: is not the file that the commit names (digest {self._digest.hexdigest()}, not "
                    f"{self._content_id}); check the mirror (HF_ENDPOINT), and run again"
                )
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
        file = _entry(hub_address(uri))
        if file is None or file.size is None:
            raise DataError(f"{uri}: no such file at this commit; check the path")
        return f"{file.content_id}-{file.size}"

    fingerprint = version

    def part(self, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        """Return some bytes of a file and its size; a negative start counts from its end."""
        size = self.size(uri)
        with RangedFile(uri, functools.partial(HubRanges, uri, self.version(uri))).open("rb", 0) as stream:
            stream.seek(max(0, size + start) if start < 0 else start)
            return stream.read(num_bytes), size

    def download(self, uri: str, path: Path, count: Count | None = None, version: str = "") -> None:
        """Copy one file, again where its bytes are not those of the commit."""
        file = RangedFile(uri, functools.partial(HubRanges, uri, version or self.version(uri)))

        def copy() -> None:
            with file.open("rb", 0) as source, atomic_file(path) as draft, draft.open("wb") as target:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
                    if count is not None:
                        count(len(piece))

        retried(copy, DOWNLOADS, errors=IntegrityError)


def is_content(path: Path, version: str) -> bool:
    """Return whether a local file has the bytes of a version."""
    digest = _digest_of(version)
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return bool(digest.hexdigest() == version.rpartition("-")[0])


def _digest_of(version: str) -> Any:
    content_id, _, size = version.rpartition("-")
    # Git's id of a blob counts its length, too.
    return hashlib.sha256() if len(content_id) == 64 else hashlib.sha1(b"blob %d\0" % int(size))  # noqa: S324  Git's


def endpoint() -> str:
    """Return the address of the hub, or of the mirror that HF_ENDPOINT names."""
    # Read here: the library reads its environment once, when it is imported.
    address = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    with suppress(ValueError):  # of a port that is no number
        parts = urlsplit(address)
        if parts.scheme in ("https", "http") and parts.hostname and parts.port != 0:
            return address
    raise PreflightError(f"HF_ENDPOINT: {address!r} is not a web address; write https://HOST or unset it")


def hub_address(uri: str, *, offline: bool = False) -> HubAddress:
    """Take an address apart; `offline` asks no hub which commit a branch is at."""
    parts = ADDRESS.fullmatch(uri)
    if not parts:
        raise RecipeError(f"{uri}: is not the address of a data set on the hub; write {FORM}")
    repo, revision, path = parts["repo"], unquote(parts["revision"] or ""), parts["path"] or ""
    if not COMMIT.fullmatch(revision):
        fault = f"{revision!r} is not a commit and can change" if revision else "names no commit"
        try:
            commit = "" if offline else str(_info(uri, repo, revision or "main").sha or "")
        except DataError:
            raise
        except AnadilError as error:
            log.debug("the commit of %s is not known: %s", uri, error)
            commit = ""
        where = f"{DATASETS}{repo}@{commit}{'/' if path else ''}{path}"
        remedy = f"write {where}" if commit else f"write @ and its 40 hex digits, {FORM}"
        raise RecipeError(f"{uri}: {fault}; {remedy}")
    return HubAddress(repo, revision, path.strip("/"))


def data_sets(uris: Sequence[str]) -> list[dict[str, str]]:
    """Return name, commit and licence of each data set among files; the licence is empty where its card states none."""
    addresses = (hub_address(uri) for uri in uris if uri.startswith(SCHEME))
    named = dict.fromkeys((address.repo, address.commit) for address in addresses)
    return [{"name": repo, "commit": commit, "licence": _licence(repo, commit)} for repo, commit in named]


def _licence(repo: str, commit: str) -> str:
    info = _info(f"{DATASETS}{repo}@{commit}", repo, commit)
    if info.id != repo:
        log.warning("%s%s is called %s now; name it so", DATASETS, repo, info.id)
    stated = info.card_data.get("license") if info.card_data else None
    names = stated if isinstance(stated, list) else [stated]
    return ", ".join(" ".join(each.split()) for each in names if isinstance(each, str))


def _info(uri: str, repo: str, revision: str) -> Any:
    with _hub_errors(uri):
        return _api().dataset_info(repo, revision=revision)


def _api() -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), library_name="anadil")


@functools.cache
def _known(_endpoint: str, _repo: str, _commit: str) -> dict[str, HubFile]:
    """Return the entries of a commit that listings have named, to be filled."""
    return {}


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
    for path, file in _list(address, folder, is_deep=is_deep).items():
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
    known = _known(endpoint(), address.repo, address.commit)
    if address.path not in known:
        with _hub_errors(address.uri(address.path)):
            known.update(
                _entries(
                    _api().get_paths_info(
                        address.repo, address.path, revision=address.commit, repo_type="dataset"
                    )
                )
            )
    return known.get(address.path)


def _list(address: HubAddress, folder: str, *, is_deep: bool) -> dict[str, HubFile]:
    """Return the entries of a folder, or all below it."""
    listed: dict[str, HubFile] = {}
    with _hub_errors(address.uri(folder)), _pages_end():
        tree = _api().list_repo_tree(
            address.repo, folder or None, recursive=is_deep, revision=address.commit, repo_type="dataset"
        )
        for path, file in _entries(tree):
            # Proxies that know addresses without their query give the first page for ever.
            if path in listed:
                raise ValueError("a page of the listing came twice")
            listed[path] = file
    _known(endpoint(), address.repo, address.commit).update(listed)
    return listed


@contextmanager
def _pages_end() -> Iterator[None]:
    """Refuse a listing whose pages name each other, or have no end."""
    from huggingface_hub import get_session

    session, named = get_session(), set[str]()
    hooks = session.event_hooks

    def look(response: Any) -> None:
        following = response.links.get("next", {}).get("url") if response.status_code == 200 else None
        if following in named or len(named) > MAX_PAGES:
            raise ValueError("a page of the listing is named twice")
        named.update([following] if following else ())

    session.event_hooks = {**hooks, "response": [*hooks["response"], look]}
    try:
        yield
    finally:
        session.event_hooks = hooks


def _entries(entries: Iterable[Any]) -> Iterator[tuple[str, HubFile]]:
    for each in entries:
        large = getattr(each, "lfs", None)
        is_file = hasattr(each, "blob_id")
        yield (
            each.path,
            HubFile(
                large.sha256 if large else each.blob_id if is_file else "", each.size if is_file else None
            ),
        )


@contextmanager
def _hub_errors(uri: str) -> Iterator[None]:
    """Turn what the library raises into our errors."""
    try:
        import huggingface_hub.errors
    except ImportError:
        raise PreflightError(f"{uri}: hf:// needs huggingface_hub; {install('hub')}, {COPY}") from None
    errors: Any = huggingface_hub.errors  # its base class is imported there without being exported
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise PreflightError(f"{uri}: HF_HUB_OFFLINE forbids to ask the hub; unset it, {COPY}") from None
    except errors.HfHubHTTPError as error:
        raise _refusal(uri, error) from None
    except FileNotFoundError as error:  # the file system's, for each refusal
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refusal(uri, error.__cause__) from None
        raise DataError(f"{uri}: no such file at this commit; check the path") from None
    except errors.HTTPError as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        if "CERTIFICATE_VERIFY_FAILED" in said:
            remedy = "set SSL_CERT_FILE to the certificates of the endpoint or the proxy"
            raise PreflightError(f"{uri}: {said}; {remedy}") from None
        remedy = "check the network, its proxy and HF_ENDPOINT, then run the same command again"
        raise RetryableError(f"{uri}: {said}; the hub did not answer; {remedy}") from None
    except UnicodeEncodeError:
        raise PreflightError(
            f"{uri}: the token of the hub holds signs that none has; check HF_TOKEN"
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise PreflightError(
            f"{uri}: {endpoint()} does not answer as the hub does; check HF_ENDPOINT and the proxy, {COPY}"
        ) from None


def _refusal(uri: str, error: Any) -> AnadilError:
    status, code = error.response.status_code, error.response.headers.get("X-Error-Code", "")
    said = " ".join((error.server_message or error.response.reason_phrase).split())[:200]
    words = f"{uri}: {{}} ({status}: {said}); {{}}"
    if status == 416:
        return IntegrityError(words.format("ends before it should", "name the commit again, and run again"))
    if status in (408, 429) or status >= 500:
        what = "the hub has had too many requests" if status == 429 else "the hub failed for now"
        return RetryableError(words.format(what, "run the same command again"))
    remedy = "set HF_TOKEN to a token that may read it"
    if status == 403 or code == "GatedRepo":
        page = f"{endpoint()}/{uri.removeprefix(SCHEME).partition('@')[0]}"
        return PreflightError(words.format("may not be read", f"accept its terms on {page}, and {remedy}"))
    if status == 401:
        return PreflightError(
            words.format(
                "is private, gated or not there, or the token is refused", f"check the name, and {remedy}"
            )
        )
    if status == 404:
        missing, remedy = {
            "RevisionNotFound": (
                "has no such commit",
                "it may have been squashed, so name one of its history",
            ),
            "EntryNotFound": ("no such file or folder at this commit", "check the path"),
            "RepoNotFound": (
                "no such data set, or one that the token may not see",
                "check the name and HF_TOKEN",
            ),
        }.get(code, ("is not there", "check name, commit and path"))
        return DataError(words.format(missing, remedy))
    return PreflightError(words.format("the hub refuses", "check the address and HF_ENDPOINT"))
