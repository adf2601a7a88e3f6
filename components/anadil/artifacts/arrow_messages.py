"""Bytes that packed batches of Arrow files unpack to, read from their headers before anything is unpacked.

Source: Apache Arrow, "Columnar format", sections on IPC and buffer compression; `Message.fbs`; FlatBuffers, "Internals".
"""

import struct
from collections.abc import Iterator
from typing import Any

from pyarrow import ipc

DICTIONARY, BATCH = 2, 3
"""Heads of messages that have buffers, by their number in the union."""
LENGTH_BYTES = 8
"""Before each packed buffer: its length unpacked, or -1 where it is not packed."""


def unpacked_bytes(file: Any) -> Iterator[int]:
    """Yield the bytes that each message with packed buffers unpacks to; 0 for an unpacked one."""
    for message in ipc.MessageReader.open_stream(file):
        if message.body is not None:
            yield _of_message(memoryview(message.metadata), message.body)


def _of_message(head: memoryview, body: Any) -> int:
    root = _Table(head, struct.unpack_from("<I", head, 0)[0])
    kind, batch = root.byte(1), root.table(2)
    if kind == DICTIONARY and batch:
        batch = batch.table(1)
    if kind not in (DICTIONARY, BATCH) or batch is None or batch.table(3) is None:
        return 0
    total = 0
    for offset, length in batch.pairs(2):
        if length >= LENGTH_BYTES and offset + LENGTH_BYTES <= body.size:
            (size,) = struct.unpack("<q", body.slice(offset, LENGTH_BYTES).to_pybytes())
            total += max(size, 0)
    return total


class _Table:
    def __init__(self, data: memoryview, place: int) -> None:
        self._data, self._place = data, place
        self._fields = place - struct.unpack_from("<i", data, place)[0]

    def _at(self, field: int) -> int:
        """Return the place of a field; 0 if it is absent."""
        (size,) = struct.unpack_from("<H", self._data, self._fields)
        place = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._fields + place)[0] if place < size else 0
        return self._place + offset if offset else 0

    def byte(self, field: int) -> int:
        place = self._at(field)
        return self._data[place] if place else 0

    def table(self, field: int) -> "_Table | None":
        place = self._at(field)
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0]) if place else None

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        if place := self._at(field):
            place += struct.unpack_from("<I", self._data, place)[0]
            (length,) = struct.unpack_from("<I", self._data, place)
            # Aligned to 8 bytes behind the length of 4.
            yield from struct.iter_unpack("<qq", self._data[place + 4 : place + 4 + 16 * length])
