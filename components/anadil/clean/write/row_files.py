"""Write `stats/`: a row for every document of the inputs, with the verdict of dedup.

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

from anadil.clean.dedup.find_duplicates import DUPLICATE, NEAR_DUPLICATE, REASONS, Verdicts
from anadil.clean.dedup.sorted_documents import Numbers, Signatures, SortedDocuments, id_of
from anadil.clean.filters.judge_record import RULE_NAMES
from anadil.clean.kernels.columns import STATISTICS
from anadil.clean.write.accounts import Accounts
from anadil.clean.write.corpus_parts import FirstLines, renumbered
from anadil.clean.write.shard_output import BIT_OF, ROWS
from anadil.core.json_text import write_json
from anadil.runtime.executor import FolderTask

STATS = "stats"
ACCOUNTS = "accounts.json"
FILE_ROWS = 65_536
"""Rows of one file; some 50 MB of memory while it is written."""
GROUP_ROWS = 8_192
PLAIN = ("id", "file", "source", "host", "licence", "bytes_in", "bytes_out", "personal_data")
VERDICT = "fails_"
"""Prefix of a rule's name: the column of its verdict, null where the rule was not asked."""
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
    first_lines: FirstLines


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTask(FolderTask):
    """Everything that a process needs to write one file of rows."""

    number: int
    slices: tuple[RowSlice, ...]
    shards: tuple[Path, ...]
    held: tuple[Path, ...]
    verdicts: Path
    reported: frozenset[str]
    limits: dict[str, float]

    @property
    def name(self) -> str:
        """Name of the file, and in messages."""
        return f"part-{self.number:05}.parquet"


def cut_rows(
    folders: Sequence[Path], num_rows: Sequence[int], starts: Sequence[int], first_lines: Sequence[FirstLines]
) -> Iterator[tuple[RowSlice, ...]]:
    """Yield the slices of each file; all arguments have one item for each shard, `starts` its first kept document."""
    total = sum(num_rows)
    bounds = list(itertools.accumulate(num_rows, initial=0))
    shards = list(zip(folders, bounds, bounds[1:], starts, first_lines, strict=False))
    for first in range(0, max(total, 1), FILE_ROWS):
        end = min(first + FILE_ROWS, total)
        yield tuple(
            RowSlice(
                folder=folder, first_row=max(first - low, 0), end_row=min(end, high) - low,
                first_document=start, first_lines=lines,
            )
            for folder, low, high, start, lines in shards
            if low < end and high > first
        )  # fmt: skip


def write_rows(task: RowsTask) -> None:
    """Write one file of rows and its accounts into a folder, unless it is done."""
    if task.is_done():
        return
    accounts, left = Accounts(task.reported, task.limits), SCHEMA.empty_table()
    with task.draft() as draft:
        with pq.ParquetWriter(draft / task.name, SCHEMA, compression="zstd") as file:
            for table in _tables(task, accounts):
                left = pa.concat_tables([left, table])
                # Groups do not show how the shards were cut.
                while left.num_rows >= GROUP_ROWS:
                    file.write_table(left.slice(0, GROUP_ROWS).combine_chunks())
                    left = left.slice(GROUP_ROWS)
            if left.num_rows:
                file.write_table(left.combine_chunks())
        write_json(draft / ACCOUNTS, accounts.as_json())


def _tables(task: RowsTask, accounts: Accounts) -> Iterator[pa.Table]:
    """Yield tables of rows, with the verdicts of dedup, and count them."""
    verdicts, signatures = Verdicts(task.verdicts), Signatures(task.shards, task.held)
    for part in task.slices:
        records = np.asarray(SortedDocuments(part.folder).column("record"))
        order = np.argsort(records, kind="stable")
        for rows in _rows_of(part):
            places_kept = np.flatnonzero(rows["reason"].is_null().to_numpy(zero_copy_only=False))
            places = np.searchsorted(records, rows["record"].to_numpy()[places_kept], sorter=order)
            yield _with_verdicts(
                rows, places_kept, order[places] + part.first_document, verdicts, signatures, accounts, part
            )


def _rows_of(part: RowSlice) -> Iterator[pa.Table]:
    row = 0
    with pq.ParquetFile(part.folder / ROWS) as file:
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            first, end = max(part.first_row - row, 0), min(part.end_row - row, size)
            row += size
            if first < end:
                yield file.read_row_group(group).slice(first, end - first)


def _with_verdicts(
    rows: pa.Table, places_kept: Numbers, documents: Numbers, verdicts: Verdicts, signatures: Signatures,
    accounts: Accounts, part: RowSlice,
) -> pa.Table:  # fmt: skip
    """Add the verdicts of dedup to rows; `places_kept` are of those that no rule drops, `documents` their numbers."""
    reason = rows["reason"].cast(pa.string()).to_numpy(zero_copy_only=False)
    cluster_size = np.zeros(rows.num_rows, dtype=np.uint32)
    duplicate_of = np.full(rows.num_rows, None, dtype=object)
    verdict = np.asarray(verdicts.verdict[documents])
    cluster_size[places_kept] = verdicts.cluster_size[documents]
    for value, name in REASONS.items():
        reason[places_kept[verdict == value]] = name
    gone = (verdict == DUPLICATE) | (verdict == NEAR_DUPLICATE)
    others = np.asarray(verdicts.duplicate_of[documents[gone]])
    halves = (signatures.column(name, others) for name in ("id_high", "id_low"))
    duplicate_of[places_kept[gone]] = [id_of(high, low) for high, low in zip(*halves, strict=True)]
    accounts.count(rows, reason, cluster_size)
    columns = {name: rows[name].cast(SCHEMA.field(name).type) for name in (*PLAIN, *STATISTICS)}
    if part.first_lines:
        sources = [renumbered(source, part.first_lines) for source in rows["source"].to_pylist()]
        columns["source"] = pa.array(sources, pa.string())
    columns["reason"] = pa.array(reason, pa.string(), from_pandas=True)
    columns["duplicate_of"] = pa.array(duplicate_of, pa.string(), from_pandas=True)
    columns["cluster_size"] = pa.array(cluster_size)
    failed, judged = rows["failed"].to_numpy(), rows["is_judged"].to_numpy(zero_copy_only=False)
    for name, bit in BIT_OF.items():
        fails = (failed & np.uint64(bit)) != 0
        columns[f"{VERDICT}{name}"] = pa.array(fails, pa.bool_(), mask=~(judged | fails))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def read_rows(corpus: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read the rows of a local corpus, in batches; some columns or all."""
    for path in sorted((corpus / STATS).glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(GROUP_ROWS, columns=columns)


def find_rows(corpus: Path, source: str) -> list[dict[str, object]]:
    """Find the rows whose source or id this text is, or whose source it is without what the record says of its own."""
    matching: list[dict[str, object]] = []
    for batch in read_rows(corpus):
        is_source = pc.or_(pc.equal(batch["source"], source), pc.starts_with(batch["source"], f"{source} "))
        chosen = pc.or_(is_source, pc.equal(batch["id"], source))
        matching += batch.filter(chosen).to_pylist()
    return matching
