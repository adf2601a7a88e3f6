"""A row for every document of a shard: what was measured, what each rule said, and why it was dropped.

Rows of a shard are in the order of its records. What only dedup knows is added when `stats/` is written.
"""

from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.clean.filters.judge_record import RULE_NAMES, FilterResult
from anadil.clean.filters.url_lists import host_of
from anadil.clean.kernels.columns import STATISTICS

ROWS = "rows.parquet"
BATCH_ROWS = 1_024
"""Held in memory before they are written: a group of rows of the file."""
PLACE_BITS = 64
"""Bits of a set of rules, as one number."""
BIT_OF = {name: 1 << place for place, name in enumerate(RULE_NAMES)}
assert len(BIT_OF) <= PLACE_BITS

SCHEMA = pa.schema(
    [
        pa.field("record", pa.uint32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("file", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("licence", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("bytes_in", pa.uint32(), nullable=False),
        pa.field("bytes_out", pa.uint32(), nullable=False),
        pa.field("is_judged", pa.bool_(), nullable=False),
        pa.field("failed", pa.uint64(), nullable=False),
        pa.field("reason", pa.dictionary(pa.int8(), pa.string())),
        pa.field("personal_data", pa.uint32(), nullable=False),
        *(pa.field(name, pa.float32()) for name in STATISTICS),
    ]
)
"""`record`: number of the record in the shard. `bytes_in`: of the page or text as it came. `failed`: bits of `BIT_OF`."""


class RowWriter:
    """Writes the rows of a shard as its documents are judged."""

    def __init__(self, folder: Path) -> None:
        self._file = pq.ParquetWriter(folder / ROWS, SCHEMA, compression="zstd")
        self._columns: dict[str, list[Any]] = {}
        self._statistics: list[Any] = []
        self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._flush()

    def add(self, record: int, file: str, licence: str, bytes_in: int, judged: FilterResult) -> None:
        """Take a document.

        Args:
            record: Number of its record within the shard.
            file: Name of the input that it is in.
            licence: As the record names it; empty where it does not.
            bytes_in: Of the page or text as it came.
            judged: What became of it.
        """
        columns, document = self._columns, judged.document
        columns["record"].append(record)
        columns["id"].append(document.id)
        columns["file"].append(file)
        columns["source"].append(document.source)
        columns["host"].append(host_of(document.url) if document.url else "")
        columns["licence"].append(licence)
        columns["bytes_in"].append(bytes_in)
        columns["bytes_out"].append(judged.num_bytes)
        columns["is_judged"].append(judged.is_judged)
        columns["failed"].append(sum(BIT_OF[name] for name in judged.failed))
        columns["reason"].append(judged.reason)
        columns["personal_data"].append(judged.personal_data.total())
        self._statistics.append(judged.statistics)
        if len(self._statistics) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._statistics:
            return
        measured = np.full((len(self._statistics), len(STATISTICS)), np.nan, dtype=np.float32)
        for row, values in zip(measured, self._statistics, strict=True):
            if values is not None:
                row[:] = values
        columns: dict[str, Any] = {**self._columns, **dict(zip(STATISTICS, measured.T, strict=True))}
        arrays = [
            pa.array(
                _writable(columns[field.name]) if pa.types.is_string(field.type) else columns[field.name],
                field.type,
                from_pandas=True,
            )
            for field in SCHEMA
        ]
        self._file.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self._clear()

    def _clear(self) -> None:
        self._columns = {name: [] for name in SCHEMA.names if name not in STATISTICS}
        self._statistics = []


def _writable(texts: list[str]) -> list[str]:
    """Without lone surrogates, which names of files and addresses may hold."""
    return [text if text.isascii() else text.encode(errors="replace").decode() for text in texts]
