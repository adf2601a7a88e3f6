"""Output of a shard: a row for every record in their order, and the kept documents with the keys that dedup compares.

What only dedup knows is added when `stats/` is written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.clean.dedup.sorted_documents import KeptDocument
from anadil.clean.filters.judge import Floats
from anadil.clean.filters.judge_record import RULE_NAMES, FilterResult, Settings
from anadil.clean.filters.lists import host_of
from anadil.clean.kernels.characters import MAX_BATCH_CHARS
from anadil.clean.kernels.columns import COLUMN, STATISTICS
from anadil.text.corpus import line_of

ROWS, FACTS = "rows.parquet", "facts.json"
BATCH_ROWS = 1_024
"""Rows in memory before they are written: a group of rows of the file."""
ASCII_SPACES = bytes(filter(lambda code: chr(code).isspace(), range(0x80)))
OTHER_SPACES = tuple(filter(str.isspace, map(chr, range(0x80, 0x3001))))
FIRST_OF_SPACES = {each.encode()[0] for each in OTHER_SPACES}
PLACE_BITS = 64
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
        pa.field("reason", pa.dictionary(pa.int16(), pa.string())),
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

    def add(self, record: int, file: str, result: FilterResult) -> None:
        """Add the record of this number within the shard, from an input of this name."""
        extracted, document = result.extracted, result.extracted.document
        row = (
            record, document.id, file, document.source, host_of(document.url) if document.url else "",
            extracted.licence, extracted.bytes_in, extracted.num_bytes, result.statistics is not None,
            failed_bits(result), result.reason, extracted.personal_data.total(),
        )  # fmt: skip
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._statistics.append(result.statistics)
        if len(self._statistics) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._statistics:
            return
        columns = self._columns | measured_columns(self._statistics)
        for name in ("id", "source", "host"):
            # Names of files and addresses may hold lone surrogates.
            columns[name] = [
                text if text.isascii() else text.encode(errors="replace").decode() for text in columns[name]
            ]
        arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in SCHEMA]
        self._file.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self._clear()

    def _clear(self) -> None:
        self._columns = {name: [] for name in SCHEMA.names if name not in STATISTICS}
        self._statistics = []


def measured_columns(statistics: Sequence[Floats | None]) -> dict[str, Any]:
    """Return columns of the statistics of records, None where the rules were not asked."""
    measured = np.full((len(statistics), len(STATISTICS)), np.nan, dtype=np.float32)
    for row, values in zip(measured, statistics, strict=True):
        if values is not None:
            row[:] = values
    return dict(zip(STATISTICS, measured.T, strict=True))


def failed_bits(result: FilterResult) -> int:
    """Return the bits of the rules that a record breaks."""
    return sum(BIT_OF[name] for name in result.failed)


def kept_documents(
    results: Sequence[FilterResult], records: Sequence[int], settings: Settings
) -> list[KeptDocument]:
    """Hash the documents that no rule drops; `records` are their numbers within the shard."""
    passed = [(record, each) for record, each in zip(records, results, strict=True) if not each.reason]
    texts = [each.extracted.document.text for _, each in passed]
    timer = settings.timer
    timer.start()
    exact, bands = settings.minhash.keys_of(texts)
    timer.lap("duplicates")
    return [
        KeptDocument(
            id=each.extracted.document.id, line=line_of(each.extracted.document), exact_key=high << 64 | low,
            band_keys=keys, weight=weight_of(each.extracted.encoded), num_bytes=each.extracted.num_bytes,
            num_words=_num_words(each, settings), record=record,
        )
        for (record, each), (high, low), keys in zip(passed, exact.tolist(), bands, strict=True)
    ]  # fmt: skip


def weight_of(encoded: bytes) -> int:
    """Return the bytes of a text's words, less the white space between them.

    Copies differ in accents, quotation marks and spaces, too: one without accents has fewer bytes, one with a space
    before each sign more spaces, and neither should stay in the original's place.
    """
    # One byte is found in a hundredth of the time.
    if any(map(encoded.__contains__, FIRST_OF_SPACES)):
        text = encoded.decode()
        if any(map(text.__contains__, OTHER_SPACES)):
            words = "".join(text.split())
            return max(0, len(words.encode()) - (len(text) - len(words)))
    # A third of the time that cutting a text into its words takes.
    return max(0, 2 * len(encoded.translate(None, ASCII_SPACES)) - len(encoded))


def _num_words(result: FilterResult, settings: Settings) -> int:
    text = result.extracted.document.text
    # The rules have counted the words, unless the text that they saw is not the one that is written.
    if result.statistics is None or result.extracted.personal_data or len(text) > MAX_BATCH_CHARS:
        return len(settings.language.words(text))
    return int(result.statistics[COLUMN["words"]])
