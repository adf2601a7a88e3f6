"""Rows of `stats/` of one corpus, read by column and by row group: memory does not grow with the corpus.

A corpus is never written again once it is there, so a row is known by its place: file, row group, row.
"""

import functools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import DataError, IntegrityError

KEPT, DROPPED = "kept", "dropped"
VERDICT = "fails_"
"""Prefix of a rule's name: the column of its verdict."""
OPEN_FILES = 4
"""Footers in memory, some 3 MB each with 8 row groups of 115 columns."""
SAMPLE_ROWS = 4_000_000
"""Most rows of which one statistic is held at a time, 20 MB; more are sampled by whole row groups."""


class Place(NamedTuple):
    """A row of a corpus."""

    file: int = 0
    group: int = 0
    row: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> Self:
        """Read what `str` gives."""
        parts = text.split("-")
        if len(parts) != len(cls._fields) or not all(part.isdecimal() and len(part) < 10 for part in parts):
            raise DataError(f"{text[:60]}: not the place of a document; go back to the list of documents")
        return cls(*map(int, parts))


class RowGroup(NamedTuple):
    """Some thousands of rows of one file."""

    place: Place
    num_rows: int
    file: pq.ParquetFile

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns; one that this file lacks is null."""
        names = self.file.schema_arrow.names
        try:
            # Threads cost more than they save on so few rows.
            table = self.file.read_row_group(
                self.place.group,
                [name for name in dict.fromkeys(columns) if name in names],
                use_threads=False,
            )
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(
                f"stats/ file {self.place.file}: cannot be read ({error}); make the corpus again"
            ) from None
        for name in dict.fromkeys(columns):
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(self.num_rows, pa.bool_()))
        return table

    def greatest(self, column: str, *, least: bool) -> float | None:
        """Return the largest value, or the least, by the file's footer; None where it says nothing."""
        names = self.file.schema_arrow.names
        if column not in names:
            return None
        # Every column is flat, so that its index in the schema is that of its chunk.
        facts = self.file.metadata.row_group(self.place.group).column(names.index(column)).statistics
        if facts is None or not facts.has_min_max:
            return None
        return float(facts.min if least else facts.max)


class StatsRows:
    """The rows of one corpus. Making it lists files; nothing else is read."""

    def __init__(self, corpus: str) -> None:
        """List the files."""
        folder = join(corpus, "stats")
        listed = storage.store(folder).listed(folder)
        self.corpus = corpus
        self._files = [
            (join(folder, name), written)
            for name, written in sorted(listed.items())
            if name.endswith(".parquet")
        ]
        if not self._files:
            raise DataError(
                f"{folder}: holds no rows of documents; the corpus was removed, or not made by clean"
            )

    @functools.cached_property
    def _schema(self) -> pa.Schema:
        return self._file(0).schema_arrow

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._schema.names)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Columns that hold numbers."""
        return tuple(
            each.name
            for each in self._schema
            if pa.types.is_floating(each.type) or pa.types.is_integer(each.type)
        )

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that have a column of verdicts, in their order."""
        return tuple(name.removeprefix(VERDICT) for name in self.columns if name.startswith(VERDICT))

    def checked(self, column: str) -> str:
        """Return the name of a statistic."""
        if column not in self.statistics:
            raise DataError(f"{column[:60]}: not a statistic of this corpus; take one of the list")
        return column

    def groups(self, start: Place = Place()) -> Iterator[RowGroup]:  # noqa: B008  a constant
        """Yield row groups in order, from that of a place on."""
        for number in range(start.file, len(self._files)):
            file = self._file(number)
            first = start.group if number == start.file else 0
            for group in range(first, file.num_row_groups):
                yield RowGroup(Place(number, group), file.metadata.row_group(group).num_rows, file)

    def sample(self, num_rows: int, budget_s: float) -> Iterator[RowGroup]:
        """Yield row groups, all or evenly spread ones with `SAMPLE_ROWS` rows, until the time is over.

        Args:
            num_rows: Rows of the corpus, by `stats.json`.
            budget_s: Seconds after which no further one begins.
        """
        every, until = max(1, -(-num_rows // SAMPLE_ROWS)), time.monotonic() + budget_s
        for number, group in enumerate(self.groups()):
            if number and time.monotonic() > until:
                return
            if number % every == 0:
                yield group

    def row(self, place: Place) -> dict[str, Any]:
        """Return all columns of a document."""
        return self.rows([place], self.columns)[0]

    def rows(self, places: Sequence[Place], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return some columns of documents, in the given order."""
        by_group: dict[tuple[int, int], list[Place]] = {}
        for place in places:
            by_group.setdefault(place[:2], []).append(place)
        by_place: dict[Place, dict[str, Any]] = {}
        for (file, number), chosen in by_group.items():
            group = next(self.groups(Place(file, number)), None) if file < len(self._files) else None
            if group is None or group.place[:2] != (file, number) or chosen[-1].row >= group.num_rows:
                raise DataError(f"{chosen[-1]}: no such document in this corpus; go back to the list")
            table = group.read(columns).take(np.array([place.row for place in chosen]))
            by_place |= dict(zip(chosen, table.to_pylist(), strict=True))
        return [by_place[place] for place in places]

    def _file(self, number: int) -> pq.ParquetFile:
        uri, written = self._files[number]
        return _opened(uri, written)


_LOCK = threading.Lock()


def _opened(uri: str, written: float) -> pq.ParquetFile:
    """Return a file with a cached footer; each reader has a file of its own, since pages are made by several threads."""
    with _LOCK:
        footer, version = _footer(uri, written)
    return _parquet(uri, version, footer)


@functools.lru_cache(OPEN_FILES)
def _footer(uri: str, written: float) -> tuple[pq.FileMetaData, str]:  # noqa: ARG001  another file in its place is read anew
    """Return the footer, and of a remote file its version, so that it is asked for once."""
    version = storage.store(uri).version(uri) if "://" in uri else ""
    return _parquet(uri, version).metadata, version


def _parquet(uri: str, version: str, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    is_remote = "://" in uri
    try:
        source: Any = storage.readable(uri, version).open("rb", 0) if is_remote else uri
        # A remote file is asked for all columns of a row group at once.
        return pq.ParquetFile(source, metadata=footer, pre_buffer=is_remote)
    except FileNotFoundError:
        raise DataError(f"{uri}: no such file any more; the corpus was removed") from None
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"{uri}: cannot be read ({error}); make the corpus again") from None
