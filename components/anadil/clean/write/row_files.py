"""The rows of all shards -> `stats/`: one for every document of the inputs, with what dedup found of it.

A file is a range of rows in the order of the inputs, so that its bytes depend neither on the shards nor on who
writes it. What `stats.json` counts is counted here, from the rows, so that the two cannot disagree.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anadil.artifacts import sealed_dir
from anadil.clean.dedup.find_duplicates import KEPT, REASONS, Verdicts
from anadil.clean.dedup.signatures import Signatures, id_of
from anadil.clean.dedup.sorted_documents import Numbers, SortedDocuments
from anadil.clean.filters.judge_record import RULE_NAMES
from anadil.clean.kernels.columns import STATISTICS
from anadil.clean.write.accounts import Accounts
from anadil.clean.write.corpus_parts import FirstLines, renumbered
from anadil.clean.write.rows import BIT_OF, ROWS
from anadil.core.json_text import write_json

STATS = "stats"
ACCOUNTS = "accounts.json"
FILE_ROWS = 65_536
"""Rows of one file; some 50 MB of memory while it is written."""
GROUP_ROWS = 8_192
PLAIN = ("id", "file", "source", "host", "licence", "bytes_in", "bytes_out")
VERDICT = "fails_"
"""Before the name of a rule, its verdict; null where the rule was not asked."""
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "file", "source", "host", "licence")),
        *((name, pa.uint32()) for name in ("bytes_in", "bytes_out")),
        ("reason", pa.string()),
        ("duplicate_of", pa.string()),
        ("cluster_size", pa.uint32()),
        ("personal_data", pa.uint32()),
        *((name, pa.float32()) for name in STATISTICS),
        *((f"{VERDICT}{name}", pa.bool_()) for name in RULE_NAMES),
    ]
)
"""`reason`: null for a kept document. `cluster_size`: documents that are alike, 0 for one that is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSlice:
    """Rows of a shard."""

    folder: Path
    first_row: int
    end_row: int
    first_document: int
    """Number of the shard's first kept document."""
    first_lines: FirstLines


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTask:
    """Everything that a process needs to write one file of rows."""

    number: int
    slices: tuple[RowSlice, ...]
    shards: tuple[Path, ...]
    held: tuple[Path, ...]
    """Columns of an earlier corpus."""
    verdicts: Path
    reported: frozenset[str]
    """Rules that drop nothing."""
    limits: dict[str, float]
    """In force, by key of `clean.rules`."""
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages, and of the file."""
        return f"part-{self.number:05}.parquet"


def cut_rows(
    folders: Sequence[Path], num_rows: Sequence[int], starts: Sequence[int], first_lines: Sequence[FirstLines]
) -> list[tuple[RowSlice, ...]]:
    """The slices of each file; all arguments have one item for each shard.

    Args:
        folders: Of the shards.
        num_rows: In them.
        starts: Number of the first kept document.
        first_lines: Lines before their ranges.
    """
    total = sum(num_rows)
    bounds = list(itertools.accumulate(num_rows, initial=0))
    files = []
    for first in range(0, max(total, 1), FILE_ROWS):
        end = min(first + FILE_ROWS, total)
        slices = [
            RowSlice(
                folder=folder, first_row=max(first - low, 0), end_row=min(end, high) - low,
                first_document=start, first_lines=lines,
            )
            for folder, low, high, start, lines in zip(
                folders, bounds, bounds[1:], starts, first_lines, strict=False
            )
            if low < end and high > first
        ]  # fmt: skip
        files.append(tuple(slices))
    return files


def write_rows(task: RowsTask) -> None:
    """Write one file of rows and its accounts into a folder, unless it is done."""
    if sealed_dir.verify(task.folder, {"key": task.key}):
        return
    verdicts, signatures = Verdicts(task.verdicts), Signatures(task.shards, task.held)
    accounts = Accounts(task.reported, task.limits)
    with sealed_dir.create(task.folder, {"key": task.key}) as draft:
        with pq.ParquetWriter(draft / task.name, SCHEMA, compression="zstd") as file:
            for table in _groups(_tables(task, verdicts, signatures, accounts)):
                file.write_table(table)
        write_json(draft / ACCOUNTS, accounts.as_json())


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of `GROUP_ROWS` rows, however the shards were cut."""
    left = SCHEMA.empty_table()
    for table in tables:
        left = pa.concat_tables([left, table])
        while left.num_rows >= GROUP_ROWS:
            yield left.slice(0, GROUP_ROWS).combine_chunks()
            left = left.slice(GROUP_ROWS)
    if left.num_rows:
        yield left.combine_chunks()


def _tables(
    task: RowsTask, verdicts: Verdicts, signatures: Signatures, accounts: Accounts
) -> Iterator[pa.Table]:
    for part in task.slices:
        records = np.asarray(SortedDocuments(part.folder).column("record"))
        by_record = np.argsort(records, kind="stable")
        for rows in _rows_of(part):
            dedup = _DedupColumns(rows, part, records, by_record, verdicts, signatures)
            accounts.count(rows, dedup.reason, dedup.cluster_size)
            yield _final(rows, part, dedup)


def _rows_of(part: RowSlice) -> Iterator[pa.Table]:
    row = 0
    with pq.ParquetFile(part.folder / ROWS) as file:
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            first, end = max(part.first_row - row, 0), min(part.end_row - row, size)
            row += size
            if first < end:
                yield file.read_row_group(group).slice(first, end - first)


class _DedupColumns:
    """Verdicts of dedup on the documents of some rows."""

    def __init__(
        self,
        rows: pa.Table,
        part: RowSlice,
        records: Numbers,
        by_record: Numbers,
        verdicts: Verdicts,
        signatures: Signatures,
    ) -> None:
        self.reason = rows["reason"].cast(pa.string()).to_numpy(zero_copy_only=False)
        self.cluster_size = np.zeros(rows.num_rows, dtype=np.uint32)
        self.duplicate_of: Numbers = np.full(rows.num_rows, None, dtype=object)
        kept = np.flatnonzero(rows["reason"].is_null().to_numpy(zero_copy_only=False))
        wanted = rows["record"].to_numpy()[kept]
        places = by_record[np.searchsorted(records, wanted, sorter=by_record)] if len(kept) else kept
        documents = places + part.first_document
        verdict = np.asarray(verdicts.verdict[documents])
        self.cluster_size[kept] = verdicts.cluster_size[documents]
        for value, name in REASONS.items():
            self.reason[kept[verdict == value]] = name
        gone = verdict != KEPT
        others = np.asarray(verdicts.duplicate_of[documents[gone]])
        halves = (signatures.column(name, others) for name in ("id_high", "id_low"))
        self.duplicate_of[kept[gone]] = [id_of(high, low) for high, low in zip(*halves, strict=True)]


def _final(rows: pa.Table, part: RowSlice, dedup: _DedupColumns) -> pa.Table:
    columns = {name: rows[name].cast(SCHEMA.field(name).type) for name in (*PLAIN, *STATISTICS)}
    if part.first_lines:
        sources = [renumbered(source, part.first_lines) for source in rows["source"].to_pylist()]
        columns["source"] = pa.array(sources, pa.string())
    columns["reason"] = pa.array(dedup.reason, pa.string(), from_pandas=True)
    columns["duplicate_of"] = pa.array(dedup.duplicate_of, pa.string(), from_pandas=True)
    columns["cluster_size"] = pa.array(dedup.cluster_size)
    columns["personal_data"] = rows["personal_data"]
    failed, judged = rows["failed"].to_numpy(), rows["is_judged"].to_numpy(zero_copy_only=False)
    for name, bit in BIT_OF.items():
        fails = (failed & np.uint64(bit)) != 0
        columns[f"{VERDICT}{name}"] = pa.array(fails, pa.bool_(), mask=~(judged | fails))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def read_rows(corpus: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a corpus, in batches.

    Args:
        corpus: A local directory.
        columns: Names; None: all.
    """
    for path in sorted((corpus / STATS).glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(GROUP_ROWS, columns=columns)


def find_rows(corpus: Path, source: str) -> list[dict[str, object]]:
    """The rows whose source or id this text is, or whose source it is without what the record says of its own."""
    matching: list[dict[str, object]] = []
    for batch in read_rows(corpus):
        is_source = pc.or_(pc.equal(batch["source"], source), pc.starts_with(batch["source"], f"{source} "))
        chosen = pc.or_(is_source, pc.equal(batch["id"], source))
        matching += batch.filter(chosen).to_pylist()
    return matching


def is_named(source: str, name: str) -> bool:
    """True if a name is a source, or file and place of one: a source may go on with what the record says of its own."""
    return source == name or source.startswith(f"{name} ")
