"""Files and directories, local, `s3://` or `hf://`: the only module that tells them apart.

`LocalStore` and `S3Store` answer the same calls. `HubStore` answers those that read inputs.
"""

import errno
import glob
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from anadil.artifacts import hub_files, local_directory
from anadil.artifacts.publish import NO_COPIES, S3Store
from anadil.artifacts.ranged import RangedFile, Ranges, ReadableFile
from anadil.artifacts.s3 import S3Ranges
from anadil.artifacts.uri import MANIFEST, AlreadyThereError, Count
from anadil.core.errors import DataError, PreflightError
from anadil.core.files import atomic_file, file_sha256, write_atomic
from anadil.core.format import counted
from anadil.recipe.fields import address_fault

log = logging.getLogger(__name__)

PIECE_BYTES = 16 * 1024**2
"""Copied at a time."""
Copy = Callable[[str], AbstractContextManager[Path]]
"""Gives a local path with what is to be read of a file, as `local_copy` does."""

BUILT_IN = "builtin:"
"""Prefix of the data that comes with the program, such as `builtin:az/prose.jsonl`."""


def store(uri: str, *others: str) -> "LocalStore | S3Store":
    """The storage that a URI belongs to. `others` are schemes that the caller reads beside."""
    if uri.startswith(BUILT_IN):
        return BuiltInStore()
    if fault := address_fault(uri, "s3", *others):
        raise PreflightError(f"{uri}: {fault}")
    return S3Store() if "://" in uri else LocalStore()


def input_store(uri: str) -> "LocalStore | S3Store | hub_files.HubStore":
    """The storage that an input of a run belongs to; nothing can be written to that of `hf://`."""
    return hub_files.HubStore() if uri.startswith(hub_files.SCHEME) else store(uri, "hf")


def check_form(uri: str, *, offline: bool) -> None:
    """Refuse an address that no storage reads. Unless `offline`, the hub says what the commit of a branch is."""
    input_store(uri)
    if uri.startswith(hub_files.SCHEME):
        hub_files.hub_address(uri, offline=offline)


def is_fixed(uri: str) -> bool:
    """Return whether an address names one content for ever: that of a commit, whose pieces are checked as they come."""
    return uri.startswith(hub_files.SCHEME)


def readable(uri: str, version: str = "") -> ReadableFile:
    """Return a file to read where it lies; of a remote one, pieces are fetched as they are read."""
    if "://" in uri:
        version = version or input_store(uri).version(uri)
        ranges: Callable[[str, str], Ranges] = (
            hub_files.HubRanges if uri.startswith(hub_files.SCHEME) else S3Ranges
        )
        return RangedFile(uri, partial(ranges, uri, version))
    return built_in(uri) if uri.startswith(BUILT_IN) else Path(uri)


@contextmanager
def local_copy(uri: str) -> Iterator[Path]:
    """A local path with the bytes of one file; a download lives as long as the block."""
    if "://" not in uri:
        path = built_in(uri) if uri.startswith(BUILT_IN) else Path(uri)
        if not path.exists():  # before a reader takes it for damaged
            raise DataError(
                f"{uri}: no such file any more; put it back, or take it out of the recipe, and run again"
            )
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder) / Path(uri).name
        input_store(uri).download(uri, path)
        yield path


TASKS = "evaluate.tasks"
"""Its directories hold tasks in YAML, which elsewhere are settings beside data."""


def expand(patterns: Sequence[str], key: str) -> list[str]:
    """The files that inputs name, in order, each once; see `sizes`."""
    return list(sizes(patterns, key))


def sizes(patterns: Sequence[str], key: str) -> dict[str, int]:
    """Return the bytes of each file that inputs name, by URI, in order; nothing is read.

    Args:
        patterns: Paths, globs, directories, `s3://` and `hf://` URIs. Files of directories and globs whose name says that they hold
            no data (`_SUCCESS`, `README.md`) are skipped, and said.
    """
    size_of: dict[str, int] = {}
    for pattern in patterns:
        # An empty one is a shell variable that nobody has set, not the directory that one happens to be in.
        each = input_store(pattern).sizes(pattern) if pattern else {}
        passed_over = [
            name
            for name in _without_data(pattern, each)
            if not (key == TASKS and name.endswith((".yaml", ".yml")))
        ]
        for name in passed_over:
            del each[name]
        said = (
            f"{counted(len(passed_over), 'file')} without data by name, such as {', '.join(passed_over[:3])}"
        )
        if not each:
            only = f" but {said}" if passed_over else ""
            raise DataError(
                f"{key}: no file matches {pattern!r}{only}; correct the path or remove it from {key}"
            )
        if passed_over:
            log.info("%s: passed over %s", key, said)
        size_of |= each
    return size_of


def _without_data(pattern: str, names: Iterable[str]) -> list[str]:
    """Return files that lie beside data; never one that the pattern names itself."""
    root = pattern if "://" in pattern else str(Path(pattern).expanduser())
    fixed = re.split(r"[*?[]", root, maxsplit=1)[0]
    folder = root if fixed == root else fixed.rpartition("/")[0]
    given = [name for name in names if name != root]
    beside = are_beside_rows(given)
    return [
        name for name in given if name in beside or is_no_data(name.removeprefix(folder).lstrip("/") or name)
    ]


class LocalStore:
    """Files of this machine."""

    def _path(self, uri: str) -> Path:
        return Path(uri)

    def exists(self, uri: str) -> bool:
        """Return whether a file exists."""
        return self._path(uri).is_file()

    def read(self, uri: str) -> bytes:
        """The bytes of one small file."""
        try:
            return self._path(uri).read_bytes()
        except FileNotFoundError:
            raise DataError(f"{uri}: no such file") from None

    def part(self, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        """Return some bytes of a file and its size; a negative start counts from its end."""
        path = self._path(uri)
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size + start) if start < 0 else start)
                return file.read(num_bytes), size
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); check the path and its rights"
            ) from None

    def write(self, uri: str, content: bytes) -> None:
        """Write beside, then rename."""
        write_atomic(Path(uri), content)

    def files(self, pattern: str) -> list[str]:
        """Return the sorted files of a path, directory or glob (`**` goes down); hidden ones have to be named."""
        path = Path(pattern).expanduser()
        if path.is_dir():
            return sorted(map(str, local_directory.files_below(path)))
        if path.is_file():
            return [str(path)]
        # Path.glob takes no absolute pattern.
        names = glob.glob(str(path), recursive=True)  # noqa: PTH207
        return sorted(name for name in names if not Path(name).is_dir())

    def sizes(self, pattern: str) -> dict[str, int]:
        """Return the bytes of each of those files, by its URI."""
        return {name: self.size(name) for name in self.files(pattern)}

    def size(self, uri: str) -> int:
        """Bytes of one file."""
        return self._stat(uri).st_size

    def version(self, uri: str) -> str:
        """Mark that changes when a file does, without reading it: its size, and when it was written."""
        stat = self._stat(uri)
        return f"{stat.st_size}-{stat.st_mtime_ns}"

    def _stat(self, uri: str) -> os.stat_result:
        try:
            stat = self._path(uri).stat()
        except OSError as error:
            raise DataError(
                f"{uri}: cannot be read ({error.strerror}); check the path and its rights"
            ) from None
        # A pipe has no ranges and is read once; opening one waits until somebody writes.
        if not (S_ISREG(stat.st_mode) or S_ISDIR(stat.st_mode)):
            raise DataError(f"{uri}: is a pipe or device, not a file; write what it gives into a file")
        return stat

    def put_directory(self, source: Path, uri: str, copies: Mapping[str, str] = NO_COPIES) -> None:
        """Rename `source`, on the same disk, to `uri` in one step, after its bytes have reached the disk."""
        assert not copies, "files of a local artifact are linked or fetched into it"
        target = Path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_finished(target)
        local_directory.refuse_occupied(uri)
        local_directory.flush_directory(source)
        try:
            source.rename(target)  # also onto an empty directory
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _refuse_finished(target)
            local_directory.refuse_occupied(uri)
            raise
        local_directory.flush(target.parent)

    def directory_sizes(self, uri: str) -> dict[str, int]:
        """Bytes of each file below a directory."""
        root = Path(uri)
        return {name: (root / name).lstat().st_size for name in local_directory.names_below(root)}

    def download(self, uri: str, path: Path, count: Count | None = None) -> None:
        """Copy beside, then rename."""
        if not Path(uri).is_file():
            raise DataError(f"{uri}: no such file")
        with Path(uri).open("rb") as source, atomic_file(path) as draft, draft.open("wb") as file:
            while piece := source.read(PIECE_BYTES):
                file.write(piece)
                if count is not None:
                    count(len(piece))

    def remove(self, uri: str) -> None:
        """Delete one file."""
        self._path(uri).unlink(missing_ok=True)

    def remove_directory(self, uri: str) -> None:
        """Remove the directory, its manifest first, so that a half-removed one is no artifact."""
        (Path(uri) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(uri, ignore_errors=True)

    def fingerprint(self, uri: str) -> str:
        """SHA-256 of the file."""
        return file_sha256(self._path(uri))

    def listed(self, uri: str) -> dict[str, float]:
        """Return names right below a directory, and when each was written, in seconds since 1970.

        A directory's name ends in `/`. Empty if there is no directory.
        """
        root = self._path(uri)
        if not root.is_dir():
            return {}
        with os.scandir(root) as entries:
            return {
                f"{entry.name}/" if entry.is_dir() else entry.name: entry.stat().st_mtime
                for entry in entries
                if not entry.is_symlink()
            }

    def directories(self, uri: str) -> list[str]:
        """Directories right below with a manifest, oldest first."""
        manifests = Path(uri).glob(f"*/{MANIFEST}")
        return [str(path.parent) for path in sorted(manifests, key=lambda p: p.stat().st_mtime_ns)]


class BuiltInStore(LocalStore):
    """Data that comes with the program: the same names in a checkout, a wheel and an image."""

    def _path(self, uri: str) -> Path:
        return built_in(uri)

    def files(self, pattern: str) -> list[str]:
        """Sorted names, with the prefix."""
        root = built_in(BUILT_IN)
        paths = super().files(str(built_in(pattern)))
        return [f"{BUILT_IN}{Path(path).relative_to(root).as_posix()}" for path in paths]


def built_in(uri: str) -> Path:
    """Return the place of a `builtin:` file on this machine."""
    return Path(__file__).parents[1] / "builtin" / uri.removeprefix(BUILT_IN)


def _refuse_finished(target: Path) -> None:
    if (target / MANIFEST).is_file():
        raise AlreadyThereError(f"{target}: another run has just finished it")


OF_PROGRAMS = re.compile(
    r"_success|_(common_)?metadata|_(committed|started)_.*|.*\.(crc|md5|sha1|sha256|sha512|asc|sig|lock|md|py|cff|bib|ya?ml|toml|ini|cfg|conf|sh|css|js"
    r"|ipynb|log|png|jpe?g|gif|svg|webp|ico|bmp|tiff?|woff2?|ttf|mp[34]|wav)"
    r"|(md5|sha1|sha256|sha512|check)sums?(\.txt)?|thumbs\.db|desktop\.ini|\..*",
    re.IGNORECASE,
)
"""Marks of Spark and Hadoop, checksums, scripts, settings, pictures and hidden files."""
OF_PEOPLE = re.compile(
    r"(readme|licen[sc]es?|copying|notice|citation|changelog|contributing|authors|acknowledge?ments)(\.(txt|rst|html?|pdf))?",
    re.IGNORECASE,
)
OF_DATASETS = re.compile(
    r"(dataset_infos?|dataset_dict|state|manifest|croissant|metadata_croissant)\.json", re.IGNORECASE
)
ROWS = re.compile(r".*\.((jsonl|ndjson|json|warc)(\.gz|\.zst)?|parquet|arrow)", re.IGNORECASE)
BESIDE_ROWS = re.compile(
    r"((log|index|urls|files|stats|statistics|summary|report|sources?|manifest|about|info|counts)(\.(txt|html?|csv|tsv|xlsx))"
    r"|.*[-_.](stats|statistics|log|summary)\.(txt|csv|tsv|xlsx)|.*\.(pdf|docx?|pptx?|tex))",
    re.IGNORECASE,
)
"""Files that describe the rows in their directory. Elsewhere they can be data: `index.html` is a page of a saved site."""
FOLDERS = frozenset(("_delta_log", "_temporary", "_spark_metadata", "_symlink_format_manifest"))
"""Names that Spark and Delta Lake give tables and lists about the data."""


def is_no_data(path: str) -> bool:
    """Return whether a file's name, from the directory that a recipe names, says that it holds no data."""
    *folders, name = path.split("/")
    if any(folder in FOLDERS or folder.startswith(".") for folder in folders):
        return True
    return any(pattern.fullmatch(name) for pattern in (OF_PROGRAMS, OF_PEOPLE, OF_DATASETS))


def are_beside_rows(paths: Iterable[str]) -> set[str]:
    """Return the files that describe files of rows in their directory."""
    names = [*paths]
    with_rows = {
        name.rpartition("/")[0] for name in names if ROWS.fullmatch(name) and not is_no_data(_last(name))
    }
    return {
        name for name in names if name.rpartition("/")[0] in with_rows and BESIDE_ROWS.fullmatch(_last(name))
    }


def _last(path: str) -> str:
    return path.rpartition("/")[2]
