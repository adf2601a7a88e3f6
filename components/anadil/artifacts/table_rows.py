"""Reader of Parquet and Arrow files in a few hundred megabytes of memory, whatever the files hold.

Pages and batches that would unpack to more are refused first. Values of dictionaries are counted before Python makes
them, and of a row that is too long only the size is given.
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

from anadil.artifacts.arrow_messages import unpacked_bytes
from anadil.artifacts.line_reader import MAX_LINE_BYTES, TooLong
from anadil.artifacts.parquet_pages import column_pages
from anadil.core.errors import DataError
from anadil.core.format import MIB, human_bytes

MAX_PAGE_BYTES = 256 * MIB
"""Most bytes of one page, unpacked. Writers cut pages at 1 MiB, but PyArrow looks at their size after 1,024 values only."""
MAX_BATCH_BYTES = 512 * MIB
"""Most bytes of a packed batch of an `.arrow` file, unpacked; Feather writes 65,536 rows in one."""
MAX_CHUNK_VALUES = 1 << 26
"""Values of a column of lists in one row group: a billion that are null take a few bytes of a file."""
DECODED_BYTES = 256 * MIB
"""Most values of a column that are decoded at a time."""
OBJECT_BYTES = 64
"""That Python takes for a value, beside its bytes."""
ARROW_FILE = b"ARROW1"
"""First bytes of Arrow's file format; the other `.arrow` is a stream, as `save_to_disk` of datasets writes it."""
SMALLER_PAGES = "write it with smaller pages, such as PyArrow's write_table(..., write_batch_size=16)"


class TooLargeError(DataError):
    """A table would take more memory than it may."""


def parquet_batches(
    stream: BinaryIO,
    name: str,
    most_rows: int,
    columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
    *,
    look_into_pages: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows, as small as their pages ask for.

    Args:
        stream: The file.
        name: For messages.
        most_rows: Of a batch.
        columns: Names or paths; None: all.
        groups: Numbers of row groups; None: all.
        look_into_pages: Read headers of pages; of a remote file each is a request.
    """
    metadata = pq.read_metadata(stream)
    listed = list(range(metadata.num_row_groups)) if groups is None else list(groups)
    rows, in_lists = most_rows, _texts_in_lists(metadata.schema)
    for pages in column_pages(stream, metadata, listed, columns) if look_into_pages else ():
        if pages.largest > MAX_PAGE_BYTES:
            raise TooLargeError(
                f"{name}: a page of column {pages.path!r} unpacks to {human_bytes(pages.largest)}, more than "
                f"{human_bytes(MAX_PAGE_BYTES)}; {SMALLER_PAGES}"
            )
        if pages.num_values > MAX_CHUNK_VALUES and pages.path in in_lists:
            raise TooLargeError(
                f"{name}: column {pages.path!r} holds {pages.num_values:,} values in one row group, more than "
                f"{MAX_CHUNK_VALUES:,}; write it with smaller row groups"
            )
        rows = min(rows, max(1, DECODED_BYTES // max(pages.largest, 1)))
    texts = [path for path, is_text in in_lists.items() if is_text]
    stream.seek(0)
    with pq.ParquetFile(stream, metadata=metadata, read_dictionary=texts, pre_buffer=True) as table:
        for (
            group
        ) in listed:  # each has dictionaries of its own, and a batch over two is one that Arrow cannot make
            yield from table.iter_batches(rows, row_groups=[group], columns=columns)


def _texts_in_lists(schema: Any) -> dict[str, bool]:
    """Paths of the columns that are lists, or in lists, and whether a dictionary may stand for their values."""
    columns = (schema.column(index) for index in range(len(schema)))
    return {each.path: each.physical_type == "BYTE_ARRAY" for each in columns if each.max_repetition_level}


def arrow_batches(file: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an `.arrow` file of either format, given as a memory map."""
    is_file = file.read(len(ARROW_FILE)) == ARROW_FILE
    # The file format is a stream of messages between two marks of 8 bytes.
    file.seek(8 if is_file else 0)
    for number, num_bytes in enumerate(unpacked_bytes(file), start=1):
        if num_bytes > MAX_BATCH_BYTES:
            raise TooLargeError(
                f"{name}: batch {number} unpacks to {human_bytes(num_bytes)}, more than {human_bytes(MAX_BATCH_BYTES)}; "
                "write it with fewer rows in a batch"
            )
    file.seek(0)
    if is_file:
        table = ipc.open_file(file)
        yield from map(table.get_batch, range(table.num_record_batches))
    else:
        yield from ipc.open_stream(file)


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
