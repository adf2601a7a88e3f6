"""Safetensors files that are written as a stream and read by pieces, with a checksum of each piece.

The header has a fixed length, so that it can be filled in when the tensors are written. The last tensor, `crc32`, has
a CRC-32 for each MiB of the tensors before it. The CRC-32 of header and table stands in `tokens.json`. So a reader
that fetches some bytes of a file checks them, and the table that it checks them by.
"""

import json
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from anadil.artifacts.random_access import BytesAt
from anadil.core.errors import IntegrityError

LENGTH_BYTES = 8
"""Length of the number that says how long the header is. Source: safetensors, README."""
DATA_BEGIN = 1024
"""First byte of the tensors: room for the header, which spaces fill up."""
BLOCK_BYTES = 1024**2
"""Bytes under one checksum: what a read of some tokens fetches and checks."""
CRC_TABLE = "crc32"
DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8"), "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
}  # fmt: skip


class TensorWriter:
    """Writes tensors one after another; nothing of them is held. A context manager."""

    def __init__(self, path: Path) -> None:
        """Begin the file `path`."""
        self._file = path.open("wb")
        # The header comes last: shapes are known when all is written.
        self._file.seek(DATA_BEGIN)
        self._entries: dict[str, Any] = {}
        self._begin = self._written = self._crc = 0
        self._crcs: list[int] = []
        self.table_crc = 0
        """CRC-32 of header and table, once the file is closed."""

    def append(self, data: bytes | memoryview) -> None:
        """Write bytes of the present tensor."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        while len(view):
            room = BLOCK_BYTES - self._written % BLOCK_BYTES
            part, view = view[:room], view[room:]
            self._crc = zlib.crc32(part, self._crc)
            self._written += len(part)
            if self._written % BLOCK_BYTES == 0:
                self._crcs.append(self._crc)
                self._crc = 0

    def end_tensor(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Name the bytes since the last tensor."""
        offsets = [self._begin, self._written]
        assert offsets[1] - offsets[0] == int(np.prod(shape)) * DTYPES[dtype].itemsize
        self._entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        self._begin = self._written

    def write(self, name: str, dtype: str, values: npt.ArrayLike) -> None:
        """Write a whole tensor."""
        array = np.ascontiguousarray(values, dtype=DTYPES[dtype])
        if array.size:
            self.append(array.data)
        self.end_tensor(name, dtype, array.shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._finish()

    def _finish(self) -> None:
        if self._written % BLOCK_BYTES:
            self._crcs.append(self._crc)
        table = np.array(self._crcs, dtype=DTYPES["U32"]).tobytes()
        self._file.write(table)
        offsets = [self._written, self._written + len(table)]
        self._entries[CRC_TABLE] = {"dtype": "U32", "shape": [len(self._crcs)], "data_offsets": offsets}
        text = json.dumps(self._entries, separators=(",", ":")).encode()
        header = text.ljust(DATA_BEGIN - LENGTH_BYTES)
        assert len(header) == DATA_BEGIN - LENGTH_BYTES
        header = len(header).to_bytes(LENGTH_BYTES, "little") + header
        self._file.seek(0)
        self._file.write(header)
        self.table_crc = zlib.crc32(table, zlib.crc32(header))


def size_of(num_bytes: int) -> int:
    """Bytes of a file whose tensors have `num_bytes`."""
    return DATA_BEGIN + num_bytes + 4 * -(-num_bytes // BLOCK_BYTES)


@dataclass(kw_only=True)
class TensorFile:
    """A file of `TensorWriter`, read by slices of its tensors. Every block is checked when it is first read."""

    place: BytesAt
    num_bytes: int
    """Bytes of its tensors, without the table."""
    table_crc: int
    _checked: set[int] = field(default_factory=set)

    @cached_property
    def _header(self) -> tuple[dict[str, Any], npt.NDArray[np.uint32]]:
        end = DATA_BEGIN + self.num_bytes
        size = size_of(self.num_bytes) - end

        def read() -> tuple[bytes, bytes]:
            return self.place.read(0, DATA_BEGIN), self.place.read(end, size)

        header, table = read()
        # A copy on this machine's disk may be the damaged one.
        if zlib.crc32(table, zlib.crc32(header)) != self.table_crc and self.place.discard(end, size):
            header, table = read()
        if zlib.crc32(table, zlib.crc32(header)) != self.table_crc:
            raise self._damaged("its header or its table of checksums")
        return json.loads(header[LENGTH_BYTES:]), np.frombuffer(table, dtype=DTYPES["U32"])

    def read(self, name: str, start: int, stop: int) -> Any:
        """Rows of a tensor, as an array."""
        entry = self._header[0][name]
        dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
        row = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        begin = entry["data_offsets"][0]
        data = self._bytes(begin + start * row, begin + stop * row)
        return np.frombuffer(data, dtype=dtype).reshape(-1, *shape[1:])

    def _bytes(self, start: int, stop: int) -> bytes | memoryview:
        if start >= stop:
            return b""
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        # Once for each process: a checksum of a MiB for every document would take longer than the reading.
        if self._checked.issuperset(range(first, last + 1)):
            return self.place.read(DATA_BEGIN + start, stop - start)
        blocks = b"".join(self._block(number) for number in range(first, last + 1))
        return memoryview(blocks)[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    def _block(self, number: int) -> bytes:
        start = DATA_BEGIN + number * BLOCK_BYTES
        num_bytes = min(BLOCK_BYTES, DATA_BEGIN + self.num_bytes - start)
        expected = self._header[1][number]
        data = self.place.read(start, num_bytes)
        if zlib.crc32(data) != expected and self.place.discard(start, num_bytes):
            data = self.place.read(start, num_bytes)
        if zlib.crc32(data) != expected:
            raise self._damaged(f"bytes {start:,} to {start + num_bytes:,}")
        self._checked.add(number)
        return data

    def _damaged(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"{self.place.name}: {what} differ from what was written; copy the file again, or remove the artifact "
            "and run its stage again"
        )
