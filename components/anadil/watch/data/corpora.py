"""The corpora of a run, and questions on `stats/`, which has a row for each document that was read.

DuckDB answers them from the Parquet files: it reads the columns and row groups that a question needs, of a store by range.
"""

import functools
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import duckdb
from fsspec import AbstractFileSystem

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError, DataError, IntegrityError
from anadil.core.files import file_sha256
from anadil.page.values import Json
from anadil.release.runs import Run
from anadil.text.domains import site_of

CORPUS = "corpus"
KEPT, DROPPED = "kept", "dropped"
VERDICT = "fails_"
"""Prefix of a rule's name: the column of its verdict."""
GROUP_ROWS = 8_192
"""Rows of a row group, as `clean` writes them."""
MOST_ROWS, MOST_REMOTE_ROWS = 2_000_000, 500_000
"""Rows that one question reads at most, of evenly spread files. A file of a store takes some ten requests."""
MEMORY, THREADS = "128MB", 2
NUMBERS = ("FLOAT", "DOUBLE", "INTEGER", "BIGINT", "UINTEGER", "UBIGINT", "USMALLINT", "UTINYINT")
SIZE = 50
"""Documents of a page."""
BUDGET_S = 5.0
"""Seconds after which a page that is not full is shown, and the next one goes on."""
SHOWN = ("id", "source", "host", "reason", "duplicate_of", "words", "bytes_out")
"""Columns of a list."""
GROUPS = ("domain", "host", "file", "licence", "reason")
"""Ways to count documents; all but a domain are columns."""
MAX_GROUPS, SHOWN_GROUPS = 20_000, 50
BINS = 24
TAIL = 0.001
"""Share of documents at each end that the first and the last bin take: one document of a book makes no flat picture."""
MIN_RATIO = 30.0
"""Ratio of the largest value to the median, from which on bins grow by a factor. Chosen by us."""
QUANTILES = {"least": 0.0, "1 %": 0.01, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "largest": 1.0}
MAX_FIELD = 2_000
"""Characters of a field."""
_LOCK = threading.Lock()


def corpora_of(run: Run) -> list[str]:
    """Return the words of the corpora that a run has finished."""
    return [word for word in run.artifacts if word.partition(".")[0] == CORPUS]


def uri_of(run: Run, word: str) -> str:
    """Return the place of an artifact of a run."""
    if word not in run.artifacts:
        raise DataError(f"{run.id}: has no {word[:60]} yet; the page shows it once its stage has finished")
    return run.artifacts[word]


def corpus_of(run: Run, word: str) -> "WatchedCorpus":
    """Return one corpus of a run."""
    uri = uri_of(run, word)
    manifest = artifact.finished_manifest(uri, CORPUS)
    return WatchedCorpus(word=word, uri=uri, manifest=manifest, stats=read_table(uri, manifest, "stats.json"))


class Place(NamedTuple):
    """A row of a corpus, which is never written again. Its address names file, row group and row in the group."""

    file: int = 0
    row: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, (self.file, *divmod(self.row, GROUP_ROWS))))

    @classmethod
    def of(cls, text: str) -> Self:
        """Read what `str` gives."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts):
            raise DataError(f"{text[:60]}: not the place of a document; go back to the list of documents")
        file, group, row = map(int, parts)
        return cls(file, group * GROUP_ROWS + row)


class Documents(NamedTuple):
    """Documents of one page."""

    rows: list[dict[str, Any]]
    """Columns of `SHOWN`, the statistic, and `place`."""
    next: Place | int | None = None
    """Place that the next page begins at, of ordered documents how many come before it; None: this is the last one."""


class GroupCounts(NamedTuple):
    """Documents of the largest groups."""

    groups: list[tuple[str, int, int]]
    """(name, kept, dropped), most documents first."""
    num_groups: int


class Distribution(NamedTuple):
    """Histogram of a statistic over kept and dropped documents."""

    edges: list[float]
    """Edges of the bins, one more than there are."""
    counts: tuple[list[int], list[int]]
    """Kept documents of each bin, and dropped ones."""
    quantiles: list[tuple[str, float | None, float | None]]
    """(name, of kept, of dropped documents)."""
    num_unmeasured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Conditions, all of which a document meets; empty ones are none."""

    reason: str = ""
    """`kept`, `dropped`, or the rule that is the reason why it is dropped."""
    fails: str = ""
    """A rule that it breaks, be it the reason or not."""
    host: str = ""
    domain: str = ""
    """Domain of the host, or one that it is below."""
    file: str = ""
    licence: str = ""
    source: str = ""
    """Part of its file and place, of its host, or its id."""
    statistic: str = ""
    """Statistic that the next two bound."""
    least: str = ""
    most: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], corpus: "WatchedCorpus") -> Self:
        """Read the fields of a page."""
        where = cls(**{each.name: given.get(each.name, "").strip()[:MAX_FIELD] for each in fields(cls)})
        if where.fails and where.fails not in corpus.rules:
            raise DataError(f"{where.fails[:60]}: not a rule of this corpus; take one of the list")
        if where.statistic and where.statistic not in corpus.statistics:
            raise DataError(f"{where.statistic[:60]}: not a statistic of this corpus; take one of the list")
        for bound in (where.least, where.most):
            _number(bound)
        return where

    @property
    def given(self) -> dict[str, str]:
        """Conditions that are set, as fields of an address."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name))}

    def sql(self) -> tuple[str, dict[str, Any]]:
        """The condition and its parameters: what somebody typed is never part of the SQL."""
        parts, values = ["true"], dict[str, Any]()
        equal = self.given
        if self.reason in (KEPT, DROPPED):
            parts.append(f"reason IS {'' if self.reason == KEPT else 'NOT '}NULL")
            del equal["reason"]
        for name in equal.keys() & {"reason", "host", "file", "licence"}:
            parts.append(f"{name} = ${name}")
            values[name] = equal[name]
        if self.domain:
            parts.append("(host = $domain OR ends_with(host, '.' || $domain))")
            values["domain"] = self.domain
        if self.fails:
            parts.append(_quoted(f"{VERDICT}{self.fails}"))
        if self.source:
            # Ids are compared whole: part of a digest names nothing.
            parts.append("(contains(lower(source), $part) OR contains(lower(host), $part) OR id = $source)")
            values |= {"part": self.source.lower(), "source": self.source}
        if self.statistic and (self.least or self.most):
            # Rows hold 32 bits: a bound is rounded as they are. A value that was not measured is in no range.
            column = f"{_quoted(self.statistic)}::FLOAT"
            parts.append(f"NOT isnan({column}) AND {column} BETWEEN $least::FLOAT AND $most::FLOAT")
            values |= {"least": _number(self.least, -math.inf), "most": _number(self.most, math.inf)}
        return " AND ".join(parts), values


@dataclass(frozen=True, kw_only=True)
class WatchedCorpus:
    """One corpus, with what its rows answer."""

    word: str
    """`corpus`, or `corpus.web` for that of a source."""
    uri: str
    manifest: Manifest
    stats: Json
    """Its `stats.json`."""

    @property
    def num_rows(self) -> int:
        """Documents that were read."""
        return int(str(self.stats.get("in") or 0))

    @functools.cached_property
    def files(self) -> list[str]:
        """Files of rows, in the order of the documents."""
        folder = join(self.uri, "stats")
        names = sorted(name for name in storage.store(folder).listed(folder) if name.endswith(".parquet"))
        if not names:
            raise DataError(
                f"{folder}: holds no rows of documents; the corpus was removed, or not made by clean"
            )
        return [join(folder, name) for name in names]

    @functools.cached_property
    def sample(self) -> list[str]:
        """The files that a question on all documents reads: every one, or of a large corpus evenly spread ones."""
        most = MOST_REMOTE_ROWS if "://" in self.uri else MOST_ROWS
        return self.files[:: max(1, -(-self.num_rows // most))]

    @property
    def sample_note(self) -> str:
        """Words on what a sample leaves out; empty where it is all."""
        if len(self.sample) == len(self.files):
            return ""
        return f"Counted in {len(self.sample):,} of {len(self.files):,} files of documents, evenly spread."

    @functools.cached_property
    def columns(self) -> dict[str, str]:
        """Column -> its type in SQL."""
        every = "DESCRIBE SELECT * EXCLUDE (filename, file_row_number)"
        return {name: kind for name, kind, *_ in self._ask(every, self.files[:1])}

    @property
    def statistics(self) -> list[str]:
        """Columns that hold numbers."""
        return [name for name, kind in self.columns.items() if kind in NUMBERS]

    @property
    def rules(self) -> list[str]:
        """Rules that have a column of verdicts, in their order."""
        return [name.removeprefix(VERDICT) for name in self.columns if name.startswith(VERDICT)]

    def row(self, place: Place) -> dict[str, Any]:
        """Return all columns of a document."""
        if place.file < len(self.files):
            row = self._ask(
                "SELECT * EXCLUDE (filename, file_row_number)",
                self.files[place.file : place.file + 1],
                "file_row_number = $row",
                row=place.row,
            )
            if row:
                return dict(zip(self.columns, row[0], strict=True))
        raise DataError(f"{place}: no such document in this corpus; go back to the list")

    def documents(self, where: Where, start: Place = Place(), size: int = SIZE) -> Documents:  # noqa: B008  a constant
        """Return the documents from a place on that meet conditions, in the order of the inputs."""
        condition, values = where.sql()
        rows: list[dict[str, Any]] = []
        until = time.monotonic() + BUDGET_S
        # File by file: a page that is full after the first one asks a store for no other footer.
        for number in range(start.file, len(self.files)):
            if number > start.file and time.monotonic() > until:
                return Documents(rows, Place(number))
            first = start.row if number == start.file else 0
            rows += self._listed(
                number, where, f"{condition} AND file_row_number >= $first LIMIT {size + 1 - len(rows)}",
                **values, first=first,
            )  # fmt: skip
            if len(rows) > size:
                return Documents(rows[:size], rows[size]["place"])
        return Documents(rows)

    def ordered(
        self, where: Where, column: str, *, largest: bool, start: int = 0, size: int = SIZE
    ) -> Documents:
        """Return the documents from a place on in the order of a column. What was not measured is left out."""
        if column not in (*SHOWN, *self.statistics):
            raise DataError(
                f"{column[:60]}: not a column that documents are ordered by, take one of the table's head"
            )
        condition, values = where.sql()
        name = _quoted(column)
        condition += f" AND NOT isnan({name}::FLOAT)" if column in self.statistics else ""
        # Only those of the page are read with all columns.
        best = self._ask(
            "SELECT filename, file_row_number", self.sample,
            f"{condition} ORDER BY {name} {'DESC' if largest else 'ASC'} NULLS LAST, filename, file_row_number"
            f" LIMIT {size + 1} OFFSET {start}",
            **values,
        )  # fmt: skip
        rows: dict[Place, dict[str, Any]] = {}
        for number in sorted({self.files.index(name) for name, _ in best[:size]}):
            numbers = [row for name, row in best[:size] if name == self.files[number]]
            listed = self._listed(number, where, f"file_row_number IN ({', '.join(map(str, numbers))})")
            rows |= {each["place"]: each for each in listed}
        listed = [rows[Place(self.files.index(name), row)] for name, row in best[:size]]
        return Documents(listed, start + size if len(best) > size else None)

    def num_matches(self, where: Where) -> int:
        """Return how many documents of the sample meet conditions."""
        condition, values = where.sql()
        return int(self._ask("SELECT count(*)", self.sample, condition, **values)[0][0])

    def group_counts(self, by: str, where: Where) -> GroupCounts:
        """Return the documents of the largest groups that meet conditions."""
        assert by in GROUPS, by
        condition, values = where.sql()
        counts: dict[str, Counter[str]] = {KEPT: Counter(), DROPPED: Counter()}
        rows = self._ask(
            f"SELECT coalesce({'host' if by == 'domain' else by}, ''), count(*) FILTER (reason IS NULL), count(reason)",
            self.sample, f"{condition} GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {MAX_GROUPS}", **values,
        )  # fmt: skip
        for name, num_kept, num_dropped in rows:
            group = site_of(name) if by == "domain" else name
            counts[KEPT][group] += num_kept
            counts[DROPPED][group] += num_dropped
        total = counts[KEPT] + counts[DROPPED]
        names = sorted(total, key=lambda name: (-total[name], name))[:SHOWN_GROUPS]
        return GroupCounts([(name, counts[KEPT][name], counts[DROPPED][name]) for name in names], len(total))

    def distribution(self, where: Where) -> Distribution:
        """Return the histogram of the statistic over documents that meet conditions."""
        condition, values = where.sql()
        column = f"{_quoted(where.statistic)}::FLOAT"
        shares = [*QUANTILES.values(), TAIL, 1 - TAIL]
        sides = "reason IS NULL AS is_kept"
        known = self._ask(
            f"SELECT {sides}, quantile_disc(v, {shares}) FROM (SELECT reason, {column} AS v",  # noqa: S608  names of the schema
            self.sample, f"{condition} AND isfinite(v)) GROUP BY is_kept", **values,
        )  # fmt: skip
        by_side = dict(known)
        edges = _edges(list(by_side.values()))
        counts = {True: [0] * BINS, False: [0] * BINS}
        num_unmeasured = 0
        # A literal without an exponent would be a decimal, with which DuckDB computes half as fast.
        low, width, factor = (
            f"{each:.17e}" for each in (edges[0], edges[1] - edges[0], edges[1] / (edges[0] or 1.0))
        )
        is_even = edges[0] <= 0 or math.isclose(edges[1] - edges[0], edges[2] - edges[1])
        place_of = f"(v - {low}) / {width}" if is_even else f"ln(greatest(v, {low}) / {low}) / ln({factor})"
        bins = f"least({BINS - 1}, greatest(0, floor({place_of})))::INTEGER"
        for side, place, count in self._ask(
            f"SELECT {sides}, if(isfinite(v), {bins}, NULL), count(*) FROM (SELECT reason, {column} AS v",  # noqa: S608  names of the schema
            self.sample, f"{condition}) GROUP BY ALL", **values,
        ):  # fmt: skip
            if place is None:
                num_unmeasured += count
            else:
                counts[side][place] = count
        none = [None] * len(shares)
        named = zip(QUANTILES, by_side.get(True, none), by_side.get(False, none), strict=False)
        return Distribution(edges, (counts[True], counts[False]), list(named), num_unmeasured)

    def _listed(self, number: int, where: Where, condition: str, **values: Any) -> list[dict[str, Any]]:
        names = [name for name in dict.fromkeys((*SHOWN, where.statistic)) if name in self.columns]
        columns = ", ".join(map(_quoted, names))
        rows = self._ask(
            f"SELECT file_row_number, {columns}", self.files[number : number + 1], condition, **values
        )
        return [{"place": Place(number, row), **dict(zip(names, cells, strict=True))} for row, *cells in rows]

    def _ask(self, select: str, files: Sequence[str], rest: str = "true", **values: Any) -> list[Any]:
        source = "read_parquet(string_split($files, chr(10)), file_row_number = true, filename = true)"
        # Parquet has no checksum that DuckDB would look at; a store compares its own.
        for uri in files if "://" not in self.uri else ():
            known = self.manifest.files.get(f"stats/{uri.rpartition('/')[2]}", {})
            if Path(uri).is_file() and not _is_undamaged(
                uri, storage.store(uri).version(uri), str(known.get("sha256"))
            ):
                raise IntegrityError(
                    f"{uri}: is damaged: its digest differs from the manifest; make the corpus again"
                )
        with _errors(files):
            cursor = _database(join(self.uri, "stats")).cursor()
            # A list as parameter would load numpy and pandas, 90 MB.
            cursor.execute(f"{select} FROM {source} WHERE {rest}", {"files": "\n".join(files), **values})
            rows: list[Any] = cursor.fetchall()
            return rows


class StoredFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """Files of a store for DuckDB: it asks for ranges, on the condition that the file is still the same."""

    protocol = "s3"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        """A stream in which each read is one request."""
        return storage.readable(path, _version(path)).open(mode, 0)

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return int(_version(path).rpartition("-")[2])

    def glob(self, path: str, **_: Any) -> list[str]:
        """The path: files are named one by one."""
        return [path]

    def exists(self, path: str, **_: Any) -> bool:  # noqa: ARG002
        """True: a file that is gone is said by the first request."""
        return True

    def modified(self, path: str) -> datetime:  # noqa: ARG002
        """One time for all: nothing in a finished corpus is written again."""
        return datetime(2026, 1, 1, tzinfo=UTC)


@functools.lru_cache(4_096)
def _version(uri: str) -> str:
    return storage.store(uri).version(uri)


@functools.lru_cache(4_096)
def _is_undamaged(path: str, version: str, sha256: str) -> bool:  # noqa: ARG001  a file that was written again is read again
    return file_sha256(path) == sha256


def _database(folder: str) -> duckdb.DuckDBPyConnection:
    with _LOCK:
        return _opened(folder)


@functools.lru_cache(2)
def _opened(folder: str) -> duckdb.DuckDBPyConnection:
    """A database in memory that reads one folder and nothing else, and installs nothing."""
    database = duckdb.connect(":memory:", config={
        "threads": THREADS, "memory_limit": MEMORY, "temp_directory": "", "python_enable_replacements": False,
        "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    })  # fmt: skip
    if "://" in folder:
        database.register_filesystem(StoredFiles())
    database.execute("SET parquet_metadata_cache = true")
    database.execute(f"SET allowed_directories = [{_text(folder)}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


@contextmanager
def _errors(files: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise DataError(f"the question needs more than {MEMORY} of memory; set a condition") from None
    except (duckdb.Error, AnadilError) as error:
        gone = next((name for name in files if not storage.store(name).exists(name)), "")
        if gone:
            raise DataError(f"{gone}: no such file any more; the corpus was removed") from None
        where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        reason = str(error).partition("\n")[0]  # DuckDB quotes the question below
        raise IntegrityError(f"{where}: cannot be read ({reason}); make the corpus again") from None


def _edges(sides: Sequence[Sequence[float]]) -> list[float]:
    """Return edges of bins from the quantiles of kept and dropped documents: even, or growing by a factor if a few are far off."""
    sides = sides or [[0.0] * len(QUANTILES) + [0.0, 1.0]]
    columns = list(zip(*sides, strict=True))
    least, middle, largest, low, high = (
        *map(min, columns[0:4:3]),
        max(columns[6]),
        min(columns[7]),
        max(columns[8]),
    )
    # Nearly all values are one, such as 0: the bins span what is left.
    if high <= low:
        low, high = least, max(largest, least + 1e-6)
    if low >= 0 and middle > 0 and high > MIN_RATIO * middle:
        low = max(low, middle / 1_000)
        return [low * (high / low) ** (place / BINS) for place in range(BINS + 1)]
    return [low + (high - low) * place / BINS for place in range(BINS + 1)]


def _number(text: str, default: float = 0.0) -> float:
    if not text:
        return default
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise DataError(f"{text[:40]}: not a number; write one such as 0.25 or 100")
    return number


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
