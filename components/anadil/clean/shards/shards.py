"""Plan shards: the ranges of inputs that one task reads, cut before any of them is read, and written down."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts import storage
from anadil.artifacts.line_reader import PLAIN_LINES
from anadil.clean.read.input_kinds import ARCHIVES
from anadil.clean.read.text_cut import LINE, STATEFUL, cut_of
from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import MIB, counted
from anadil.recipe.clean import TxtDocument

log = logging.getLogger(__name__)

MIN_SHARD_BYTES = 4 * MIB
"""Smaller shards cost more in files than they gain."""
SHARDS_PER_WORKER = 4
"""Shards for each worker of a small input, so that all workers end at about the same time."""
SPLITTABLE = (*PLAIN_LINES, *ARCHIVES)
"""Suffixes of files of which a range of bytes can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """A file, or a part of it."""

    uri: str
    name: str
    start: int = 0
    """First byte whose records belong to it; of Parquet the first row group."""
    end: int | None = None
    """Where the next range begins; None: it goes up to the end of the file."""
    is_exact: bool = False
    """For a WARC file: a record begins at `start`, or the file ends there."""
    size: int
    version: str
    """Version that changes with the file; see `storage`."""

    def check_unchanged(self) -> None:
        """Refuse a file that is not the one that was planned for."""
        # A commit would be asked for again by every process, and the hub limits requests.
        if not storage.is_fixed(self.uri) and storage.input_store(self.uri).version(self.uri) != self.version:
            raise IntegrityError(
                f"{self.uri}: changed while clean was reading it; let nobody write there and run again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Ranges that one task reads."""

    number: int
    ranges: tuple[InputRange, ...]


def plan_shards(
    uris: Sequence[str], max_bytes: int, num_workers: int, txt_document: TxtDocument = "file",
    language: str = "",
) -> list[Shard]:  # fmt: skip
    """Cut the inputs, in the order of their names, into shards.

    The result of the stage does not depend on the cuts.

    Args:
        num_workers: That are to have work; small inputs are cut into smaller shards.
        txt_document: What a document of a `.txt` is; a file whose lines are documents is cut, too.
        language: Language whose letters tell code pages apart.
    """
    named = sorted(zip(names(uris), uris, strict=True))
    sizes = [storage.input_store(uri).size(uri) for _, uri in named]
    if empty := [uri for (_, uri), size in zip(named, sizes, strict=True) if not size]:
        log.warning(
            "%s without a byte, such as %s; write it again, or leave it out",
            counted(len(empty), "file"),
            empty[0],
        )
    share = math.ceil(sum(sizes) / (SHARDS_PER_WORKER * num_workers))
    most = min(max_bytes, max(MIN_SHARD_BYTES, share))
    shards: list[list[InputRange]] = []
    for (name, uri), size in zip(named, sizes, strict=True):
        is_cut = uri.lower().endswith(SPLITTABLE) or (
            size > most and uri.lower().endswith(".txt") and _has_lines(uri, txt_document, language, size)
        )
        for part in _ranges(uri, name, size, most, is_cut=is_cut):
            if not shards or sum(each.size for each in shards[-1]) + part.size > most:
                shards.append([])
            shards[-1].append(part)
    return [Shard(number=number, ranges=tuple(ranges)) for number, ranges in enumerate(shards)]


def correct_starts(shards: Sequence[Shard], read: Sequence[Sequence[Mapping[str, Any]]]) -> list[Shard]:
    """Let every range of a WARC file begin where the one before it has found the next record, by their `ReadStats`."""
    corrected, last, following = list[Shard](), "", None
    for shard, stats in zip(shards, read, strict=True):
        ranges = []
        for part, counts in zip(shard.ranges, stats, strict=True):
            # None: the one before was not read to its end, for a record that killed its reader.
            if part.start and part.uri == last and following not in (None, counts["first"]):
                part = replace(part, start=following, is_exact=True)  # noqa: PLW2901
            ranges.append(part)
            last, following = part.uri, counts["following"]
        corrected.append(replace(shard, ranges=tuple(ranges)))
    return corrected


def versions_of(uris: Sequence[str]) -> list[list[str]]:
    """Return name, URI and version of each file, in the order of the names."""
    named = sorted(zip(names(uris), uris, strict=True))
    return [[name, uri, storage.input_store(uri).version(uri)] for name, uri in named]


def write_plan(path: Path, shards: Sequence[Shard]) -> None:
    """Write a plan."""
    storage.LocalStore().write(str(path), json.dumps([asdict(shard) for shard in shards]).encode())


def read_plan(path: Path) -> list[Shard]:
    """Read a plan."""
    return [
        Shard(number=shard["number"], ranges=tuple(InputRange(**each) for each in shard["ranges"]))
        for shard in json.loads(path.read_text(encoding="utf-8"))
    ]


def names(uris: Sequence[str]) -> list[str]:
    """Return short names of files: their paths below the directory that all share.

    So provenance, and with it the digest of the corpus, is the same wherever the data lies.
    """
    parts = [uri.split("/") for uri in uris]
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == parts[0][shared] for path in parts) and parts:
        shared += 1
    # A file name that is not UTF-8 arrives with lone surrogates, which no JSON could be written with.
    return ["/".join(path[shared:]).encode(errors="replace").decode() for path in parts]


def by_short_name(source: str, named: Mapping[str, str]) -> str:
    """Replace the path or URI of a source's file, such as `text/news.jsonl:17`, by its short name."""

    def absolute(place: str) -> str:
        return place if "://" in place else str(Path(place).absolute())

    path = absolute(source)
    for name, uri in named.items():
        place = absolute(uri)
        if path == place or path.startswith(f"{place}:"):
            return name + path.removeprefix(place)
    return source


def _has_lines(uri: str, txt_document: TxtDocument, language: str, size: int) -> bool:
    file = storage.readable(uri, storage.input_store(uri).version(uri))
    known = cut_of(file, txt_document, language, size)
    return known.cut == LINE and not known.codec.startswith(STATEFUL)


def _ranges(uri: str, name: str, size: int, most: int, *, is_cut: bool) -> Iterator[InputRange]:
    version = storage.input_store(uri).version(uri)
    if size > most:
        if is_cut:
            for start in range(0, size, most):
                end = start + most if start + most < size else None
                yield InputRange(
                    uri=uri, name=name, start=start, end=end, size=min(most, size - start), version=version
                )
            return
        if uri.lower().endswith(".parquet"):
            yield from _row_groups(uri, name, most, version)
            return
    yield InputRange(uri=uri, name=name, size=size, version=version)


def _row_groups(uri: str, name: str, most: int, version: str) -> Iterator[InputRange]:
    """Yield ranges of row groups; of a damaged file one range, whose reader says what is wrong."""
    try:
        with storage.readable(uri, version).open("rb", 0) as stream, pq.ParquetFile(stream) as table:
            groups = [table.metadata.row_group(n).total_byte_size for n in range(table.num_row_groups)]
    except (pa.ArrowException, OSError, DataError):
        groups = [0]
    start = size = 0
    for number, group in enumerate(groups):
        if size and size + group > most:
            yield InputRange(uri=uri, name=name, start=start, end=number, size=size, version=version)
            start, size = number, 0
        size += group
    yield InputRange(uri=uri, name=name, start=start, size=size, version=version)
