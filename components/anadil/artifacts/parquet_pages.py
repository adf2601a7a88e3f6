"""Bytes that pages of a Parquet file unpack to, read from their headers before anything is unpacked.

Arrow allocates what a page's header asks for, and 28 kB of a file may ask for gigabytes. The footer tells only of whole
columns, which may be large where their pages are small.
Source: parquet-format, `parquet.thrift` (PageHeader); Thrift, "Compact protocol".
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

PAGE_SIZE, PACKED_SIZE, DATA_HEADERS, NUM_VALUES = 2, 3, (5, 7, 8), 1
"""Fields of a page's header: bytes without and with packing; headers by kind, whose first field counts values."""
HEADER_BYTES = (256, 1 << 16, 1 << 24)
"""Read of a header, more where that is not all of it: it may hold the least and greatest value. Arrow refuses 16 MiB."""
MAX_NESTING = 8
STOP, TRUE, FALSE, BYTE, INT16, INT64, DOUBLE, BINARY, LIST, SET, STRUCT = 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12


class ColumnPages(NamedTuple):
    """The pages of one column in one row group."""

    path: str
    largest: int
    """Bytes of the largest page, unpacked."""
    num_values: int
    """In all pages, with those that are null."""


def column_pages(
    stream: BinaryIO, metadata: Any, groups: Sequence[int], columns: Sequence[str] | None
) -> Iterator[ColumnPages]:
    """Yield the pages of some row groups and columns (names, or paths of what they are in; None: all)."""
    for group in groups:
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            path = column.path_in_schema
            if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                yield _pages_of(stream, column, path)


def _pages_of(stream: BinaryIO, column: Any, path: str) -> ColumnPages:
    place = column.data_page_offset
    if column.dictionary_page_offset:
        place = min(place, column.dictionary_page_offset)
    end = place + column.total_compressed_size
    largest = num_values = 0
    while place < end:
        header_and_size = _header_at(stream, place)
        if header_and_size is None:
            # Not as the format has it: Arrow tells what is wrong, and the footer how much there is.
            largest = max(largest, column.total_uncompressed_size)
            break
        header, size = header_and_size
        largest = max(largest, int(header[PAGE_SIZE]))
        num_values += sum(int(header[kind].get(NUM_VALUES, 0)) for kind in DATA_HEADERS if kind in header)
        place += size + int(header[PACKED_SIZE])
    return ColumnPages(path, largest, max(num_values, column.num_values))


def _header_at(stream: BinaryIO, place: int) -> tuple[dict[int, Any], int] | None:
    """The header that begins at a place, and its bytes; None where none does."""
    for most in HEADER_BYTES:
        stream.seek(place)
        reader = _Compact(stream.read(most))
        try:
            header = reader.struct()
        except (IndexError, ValueError):
            continue
        sizes = (header.get(PAGE_SIZE), header.get(PACKED_SIZE))
        return (header, reader.place) if all(isinstance(size, int) and size >= 0 for size in sizes) else None
    return None


class _Compact:
    """Reader of a struct in Thrift's compact protocol: numbers and structs; it skips all else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields by number."""
        if depth > MAX_NESTING:
            raise ValueError("nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._number()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _byte(self) -> int:
        self.place += 1
        return self._data[self.place - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 70:
                raise ValueError("a number without an end")

    def _number(self) -> int:
        zigzag = self._varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if INT16 <= kind <= INT64:
            return self._number()
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, SET):
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._value(BYTE if head & 15 in (TRUE, FALSE) else head & 15, depth + 1)
            return None
        if kind not in (BYTE, DOUBLE, BINARY):
            raise ValueError(f"no type {kind}")
        size = 1 if kind == BYTE else 8 if kind == DOUBLE else self._varint()
        self.place += size
        if self.place > len(self._data):
            raise IndexError
        return None
