"""Reader of Parquet and Arrow files within a limit of memory, whatever the files hold.

A page or batch of a few kilobytes may unpack to gigabytes: Arrow then meets the limit, and the file is refused. Values
of dictionaries are counted before Python makes them, and of a row that is too long only the size is given.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

from anadil.artifacts.line_reader import MAX_LINE_BYTES, TooLong
from anadil.core.errors import DataError
from anadil.core.format import GIB, human_bytes
from anadil.core.processes import memory_limit

DECODED_BYTES = GIB
"""Memory that Arrow may take at a time, beside what the process has. Chosen by us; pages have 1 MiB by default."""
OBJECT_BYTES = 64
"""That Python takes for a value, beside its bytes."""
ARROW_FILE = b"ARROW1"
"""First bytes of Arrow's file format; the other `.arrow` is a stream, as `save_to_disk` of datasets writes it."""


class TooLargeError(DataError):
    """A table would take more memory than it may."""


def parquet_batches(
    stream: BinaryIO, name: str, most_rows: int, columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield batches of rows; of one row each where more would take too much memory.

    `columns` are names or paths, `groups` numbers of row groups.
    """
    metadata = pq.read_metadata(stream)
    # A text that stands in a million lists is stored once. Decoded as a dictionary, it stays so.
    schema = (metadata.schema.column(index) for index in range(len(metadata.schema)))
    texts = [each.path for each in schema if each.max_repetition_level and each.physical_type == "BYTE_ARRAY"]
    stream.seek(0)
    settings = {"read_dictionary": texts, "pre_buffer": True, "page_checksum_verification": True}
    with pq.ParquetFile(stream, metadata=metadata, **settings) as table:
        # Each group has dictionaries of its own, and Arrow makes no batch over two.
        for group in range(metadata.num_row_groups) if groups is None else groups:
            num_rows = 0
            try:
                for batch in _within_limit(table.iter_batches(most_rows, [group], columns), name):
                    yield batch
                    num_rows += batch.num_rows
            except TooLargeError:
                for row, batch in enumerate(_within_limit(table.iter_batches(1, [group], columns), name)):
                    if row >= num_rows:
                        yield batch


def arrow_batches(file: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an `.arrow` file of either format, given as a memory map."""
    is_file = file.read(len(ARROW_FILE)) == ARROW_FILE
    file.seek(0)
    if is_file:
        table = ipc.open_file(file)
        yield from _within_limit(map(table.get_batch, range(table.num_record_batches)), name)
    else:
        yield from _within_limit(ipc.open_stream(file), name)


def _within_limit(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    batches = iter(batches)
    while True:
        try:
            with memory_limit(DECODED_BYTES):
                batch = next(batches, None)
        except MemoryError:
            raise TooLargeError(
                f"{name}: a page or batch unpacks to more than {human_bytes(DECODED_BYTES)}; write it in smaller ones, such as "
                "with PyArrow's write_table(..., write_batch_size=16)"
            ) from None
        if batch is None:
            return
        yield batch


def batch_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | TooLong | UnicodeDecodeError]:
    """The rows of a batch; of one that is too long its size, and what is wrong with one that is not UTF-8."""
    for start, length in _pieces(batch):
        try:
            yield from batch.slice(start, length).to_pylist()
        except UnicodeDecodeError:  # which Parquet lets anybody write
            for row in range(start, start + length):
                try:
                    yield from batch.slice(row, 1).to_pylist()
                except UnicodeDecodeError as error:
                    yield error
        if not length:
            yield TooLong(_row_bytes(batch.slice(start, 1)), "row")


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Beginnings and lengths of pieces that Python can hold; a length of 0 stands for a row that is too long."""
    if _row_bytes(batch) <= MAX_LINE_BYTES:
        yield 0, batch.num_rows
        return
    for row in range(batch.num_rows):
        yield row, int(_row_bytes(batch.slice(row, 1)) <= MAX_LINE_BYTES)


def _row_bytes(batch: pa.RecordBatch) -> int:
    return sum(map(_num_bytes, batch.columns))


def _num_bytes(array: Any) -> int:
    """Bytes that Python takes for the values of an array, at least."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _num_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        if not _has_length(kind.value_type):
            return OBJECT_BYTES * len(array)
        lengths = pc.binary_length(array.dictionary).take(array.indices)
        return OBJECT_BYTES * len(array) + (pc.sum(lengths.cast(pa.int64())).as_py() or 0)
    if _has_length(kind):
        return OBJECT_BYTES * len(array) + (pc.sum(pc.binary_length(array).cast(pa.int64())).as_py() or 0)
    if pa.types.is_struct(kind):
        return OBJECT_BYTES * len(array) + sum(map(_num_bytes, array.flatten()))
    if pa.types.is_nested(kind) and hasattr(array, "flatten"):
        return OBJECT_BYTES * len(array) + _num_bytes(array.flatten())
    return OBJECT_BYTES * len(array)


def _has_length(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
