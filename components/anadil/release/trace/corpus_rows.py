"""Documents of a chain's corpora: sums by file, licence, rule and host, and single documents."""

# Rows and documents are read in batches, and sums of hosts lie on disk, so that memory does not grow with the corpus.

import json
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.line_reader import bounded_lines
from anadil.artifacts.uri import join
from anadil.clean.shards.shards import by_short_name
from anadil.core.errors import DataError
from anadil.text.corpus import Document, read_file

BATCH_ROWS = 16_384
# Hosts that a trace holds; all are counted.
TOP_HOSTS = 100_000
MAX_QUESTIONS = 1_000_000
COLUMNS = ("id", "file", "source", "host", "licence", "bytes_out", "reason", "duplicate_of", "words")
PARTS = {"train": "trained on", "heldout": "held out"}
NOT_FOUND, DROPPED, UNKNOWN = "not found", "dropped", "unknown"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSums:
    """Documents of a file: kept ones, and dropped ones by rule."""

    name: str
    documents: int
    words: int
    num_bytes: int
    dropped: Mapping[str, int]
    licences: Mapping[str, int]
    """Kept documents by the licence that their records name; an empty name: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSums:
    """Kept documents of a host."""

    host: str
    documents: int
    words: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSums:
    """Sums over the rows of a corpus."""

    uri: str
    digest: str
    files: tuple[FileSums, ...]
    hosts: tuple[HostSums, ...]
    """Hosts, those with most text first."""
    num_hosts: int
    words_by_licence: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTrace:
    """The answer to one question."""

    question: str
    state: str
    """`trained on`, `held out`, `dropped`, `not found`; `unknown` where the corpus cannot be read."""
    id: str = ""
    source: str = ""
    url: str = ""
    reason: str = ""
    duplicate_of: str = ""
    corpus: str = ""
    others: int = 0
    """Further documents that the same question names."""


def questions_of(texts: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Questions: an id, URL or source each, or the lines of a file, which may be JSON objects with such a field.

    A path or URI of `files` (name in documents -> path or URI), with or without a place in the file, is a source.
    """
    questions: dict[str, None] = {}
    for text in texts:
        source = by_short_name(text, files)
        if source != text or "://" in text or not Path(text).is_file():
            questions[source] = None
            continue
        for number, line in enumerate(bounded_lines(Path(text)), start=1):
            if not isinstance(line, bytes) or not line.strip():
                continue
            questions[_question(line.decode(errors="replace").strip(), f"{text}:{number}")] = None
            if len(questions) > MAX_QUESTIONS:
                raise DataError(f"{text}: names more than {MAX_QUESTIONS:,} documents; cut it into parts")
    return list(questions)


def _question(line: str, place: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not JSON ({error}); give an id, a URL or a source a line") from None
    for key in ("url", "id", "source"):
        if isinstance(row.get(key), str) and row[key]:
            return str(row[key])
    raise DataError(f"{place}: names no document; give it `id`, `url` or `source`")


def sum_rows(uri: str, manifest: Manifest) -> CorpusSums:
    """The sums of a corpus, from its rows."""
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    licences: defaultdict[str, Counter[str]] = defaultdict(Counter)
    words: Counter[str] = Counter()
    with _HostCounts() as hosts:
        for table in _rows(uri, manifest):
            for row in _grouped(table, ["file", "licence", "reason"]):
                if row["reason"] is not None:
                    dropped[row["file"]][row["reason"]] += row["documents"]
                    continue
                files[row["file"]].update({name: row[name] for name in ("documents", "words", "bytes")})
                licences[row["file"]][row["licence"] or ""] += row["documents"]
                words[row["licence"] or ""] += row["words"]
            hosts.add(_grouped(table.filter(table["reason"].is_null()), ["host"]))
        top, num_hosts = hosts.top(TOP_HOSTS), hosts.count()
    return CorpusSums(
        uri=uri, digest=manifest.digest, hosts=top, num_hosts=num_hosts,
        words_by_licence=dict(words.most_common()),
        files=tuple(
            FileSums(
                name=name, documents=files[name]["documents"], words=files[name]["words"], num_bytes=files[name]["bytes"],
                dropped=dict(dropped[name].most_common()), licences=dict(licences[name].most_common()),
            )
            for name in sorted(files.keys() | dropped.keys())
        ),
    )  # fmt: skip


def find_documents(
    trained: Sequence[tuple[str, Manifest]], corpora: Sequence[tuple[str, Manifest]], questions: Sequence[str]
) -> tuple[DocumentTrace, ...]:
    """The answer to each question, from the training corpora (none if one is unreadable) and the rows of all corpora."""
    # One pass over the documents, then one over the rows of dropped ones. The training corpus holds the documents of
    # the corpora that it adds to.
    answers: dict[str, DocumentTrace] = {}
    others: Counter[str] = Counter()
    asked = frozenset(questions)
    parts = [(part, state, corpus) for part, state in PARTS.items() for corpus in trained] if asked else []
    for part, state, corpus in parts:
        for document in _documents(*corpus, part):
            # A question may leave out the record's place in its file.
            names = {document.id, document.source, document.source.partition(" ")[0], document.url} - {""}
            for name in names & asked:
                others[name] += name in answers
                answer = DocumentTrace(
                    question=name, state=state, id=document.id, source=document.source, url=document.url,
                    corpus=corpus[0],
                )  # fmt: skip
                answers.setdefault(name, answer)
    missing = asked - answers.keys()
    for uri, manifest in corpora if missing else ():
        for table in _rows(uri, manifest):
            for row in table.filter(table["reason"].is_valid()).to_pylist():
                for name in {row["id"], row["source"], row["source"].partition(" ")[0]} & missing:
                    answer = DocumentTrace(
                        question=name, state=DROPPED, id=row["id"], source=row["source"], reason=row["reason"],
                        duplicate_of=row["duplicate_of"] or "", corpus=uri,
                    )  # fmt: skip
                    answers.setdefault(name, answer)
    state = NOT_FOUND if trained else UNKNOWN
    unknown = {name: DocumentTrace(question=name, state=state) for name in questions}
    return tuple(replace((unknown | answers)[name], others=others[name]) for name in questions)


def list_documents(uri: str, manifest: Manifest) -> Iterator[Json]:
    """Id, source and URL of every document that a corpus gives to training."""
    for document in _documents(uri, manifest, "train"):
        yield {"id": document.id, "source": document.source, "url": document.url}


def _documents(uri: str, manifest: Manifest, part: str) -> Iterator[Document]:
    for name in sorted(manifest.files):
        if name.startswith(f"{part}/"):
            with storage.local_copy(join(uri, name)) as path:
                yield from read_file(path)


def _rows(uri: str, manifest: Manifest) -> Iterator[pa.Table]:
    for name in sorted(manifest.files):
        if name.startswith("stats/part-"):
            with storage.readable(join(uri, name)).open("rb") as stream, pq.ParquetFile(stream) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=list(COLUMNS)):
                    yield pa.Table.from_batches([batch])


def _grouped(table: pa.Table, keys: Sequence[str]) -> list[Json]:
    """Documents, words and bytes of rows that are alike in some columns."""
    sums = table.group_by(list(keys)).aggregate([("id", "count"), ("words", "sum"), ("bytes_out", "sum")])
    return [
        {
            **{key: row[key] for key in keys},
            "documents": row["id_count"], "words": round(row["words_sum"] or 0), "bytes": row["bytes_out_sum"] or 0,
        }
        for row in sums.to_pylist()
    ]  # fmt: skip


class _HostCounts:
    """Sums by host, on disk: a crawl has millions of hosts."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="anadil-hosts-")
        self._base = sqlite3.connect(Path(self._folder.name) / "hosts.db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode = OFF")
        self._base.execute("PRAGMA synchronous = OFF")
        self._base.execute(
            "CREATE TABLE hosts (host TEXT PRIMARY KEY, documents INT, words INT, bytes INT) WITHOUT ROWID"
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._base.close()
        self._folder.cleanup()

    def add(self, rows: Sequence[Json]) -> None:
        """Take in the sums of a piece."""
        self._base.execute("BEGIN")
        self._base.executemany(
            "INSERT INTO hosts VALUES (:host, :documents, :words, :bytes) ON CONFLICT (host) DO UPDATE SET "
            "documents = documents + excluded.documents, words = words + excluded.words, bytes = bytes + excluded.bytes",
            [row for row in rows if row["host"]],
        )
        self._base.execute("COMMIT")

    def count(self) -> int:
        """Number of hosts."""
        with closing(self._base.execute("SELECT count(*) FROM hosts")) as cursor:
            return int(cursor.fetchone()[0])

    def top(self, most: int) -> tuple[HostSums, ...]:
        """Hosts with most text."""
        query = "SELECT host, documents, words, bytes FROM hosts ORDER BY bytes DESC, host LIMIT ?"
        with closing(self._base.execute(query, (most,))) as cursor:
            return tuple(HostSums(host=host, documents=documents, words=words, num_bytes=size) for host, documents, words, size in cursor)  # fmt: skip
