"""Copy the beginnings of files, cut where a record ends, so that their own readers take them for whole files.

The inputs of a run can be terabytes in a bucket; their first megabytes show whether the recipe describes them.
"""

import gzip
import io
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import zstandard

from anadil.artifacts import storage
from anadil.artifacts.json_values import PACKED_JSON
from anadil.artifacts.line_reader import MAX_LINE_BYTES, MAX_ZSTD_WINDOW_BYTES, PACKED_LINES, PLAIN_LINES
from anadil.artifacts.separated_file import PACKED_TABLES
from anadil.artifacts.text_tables import BYTE_ORDER_MARKS, SEPARATED
from anadil.artifacts.workbook import WORKBOOK
from anadil.core.format import MIB
from anadil.core.json_text import parse_json

PIECE_BYTES = 4 * MIB  # Fetched at a time; between two pieces the clock is read.
# Bytes of `.txt` and `.html`, which are one document each; readers refuse more than 16 MiB.
ONE_DOCUMENT_BYTES = 17 * MIB
MAX_FOOTER_BYTES = 64 * MIB
# Length of the footer (4 bytes) and the letters PAR1. Source: parquet-format, README, File format.
PARQUET_TAIL_BYTES = 8
GZIP_MEMBER = b"\x1f\x8b\x08"
NEXT_WARC_RECORD = b"\r\n\r\nWARC/1."


class NoWholeRecordError(Exception):
    """The first record of a file is longer than what is read."""


class InputSample:
    """Copies of no more than the first bytes of files, for a limited time."""

    def __init__(self, num_bytes: int, seconds: float) -> None:
        self.num_bytes = num_bytes
        """Bytes of each file."""
        self.whole = True
        """True if all that was given out was all that there is; a reader that stops early unsets it."""
        self.looked: set[str] = set()
        """Files of which something was given out."""
        self._deadline = time.monotonic() + seconds

    def over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self._deadline

    @contextmanager
    def copy(self, uri: str) -> Iterator[Path]:
        """Yield a local path with the beginning of a file, in place of `storage.local_copy`."""
        self.looked.add(uri)
        name = uri.lower()
        if name.endswith((".parquet", ".arrow")) and "://" not in uri:
            storage.input_store(uri).part(
                uri, 0, 1
            )  # whether it can be read; its reader takes a piece at a time
            with storage.local_copy(uri) as path:
                yield path
            return
        with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
            path = Path(folder) / Path(uri).name
            if name.endswith(".parquet"):
                self._write_remote_parquet(uri, path)
            else:
                data, whole = self._first_bytes(uri, name)
                if not whole:
                    self.whole = False
                    data = cut_at_record(data, name, self.num_bytes)
                    if not data:
                        raise NoWholeRecordError
                path.write_bytes(data)
            yield path

    def _first_bytes(self, uri: str, name: str) -> tuple[bytes, bool]:
        limit = ONE_DOCUMENT_BYTES if name.endswith((".txt", ".html", ".htm")) else self.num_bytes
        there = storage.input_store(uri)
        data, size = there.part(uri, 0, min(limit, PIECE_BYTES))
        while len(data) < min(limit, size) and not self.over():
            piece, _ = there.part(uri, len(data), min(limit - len(data), PIECE_BYTES))
            if not piece:
                break
            data += piece
        return data, len(data) >= size

    def _write_remote_parquet(self, uri: str, path: Path) -> None:
        """Write a table without rows that has the columns of the remote one, from its footer."""
        import pyarrow as pa
        from pyarrow import parquet

        there = storage.input_store(uri)
        tail, size = there.part(uri, -PARQUET_TAIL_BYTES, PARQUET_TAIL_BYTES)
        length = int.from_bytes(tail[:4], "little") + PARQUET_TAIL_BYTES
        if not tail.endswith(b"PAR1") or length > min(size, MAX_FOOTER_BYTES):
            path.write_bytes(tail)  # its reader says that this is no Parquet
            return
        footer, _ = there.part(uri, -length, length)
        try:
            parquet.write_table(parquet.read_schema(io.BytesIO(footer)).empty_table(), path)
        except (pa.ArrowException, OSError):
            path.write_bytes(footer)
        self.whole = False


def cut_at_record(data: bytes, name: str, limit: int) -> bytes:
    """Cut the first bytes of a file, of this name in lower case, where their last whole record ends.

    Compressed data is unpacked to `limit` bytes at most.
    """
    # Bytes that are not of the kind that the name says stay as they are, so that the reader reports it.
    if name.endswith(PLAIN_LINES):
        return _cut_lines(data)
    if name.endswith(SEPARATED):
        return _cut_table(data)
    if name.endswith(".json"):
        return _cut_json(data)
    if name.endswith((".arrow", WORKBOOK)):
        return b""  # a part of them cannot be read
    if name.endswith((*PACKED_LINES, *PACKED_TABLES, *PACKED_JSON)):
        return _cut_packed(data, name, limit)
    if name.endswith((".warc.gz", ".warc.wet.gz")):
        return data[: max(0, data.rfind(GZIP_MEMBER))] if data.startswith(GZIP_MEMBER) else data
    if name.endswith((".warc", ".warc.wet")):
        end = data.rfind(NEXT_WARC_RECORD)
        return data[: end + 4 if end > 0 else 0] if data.startswith(b"WARC/") else data
    if name.endswith(".txt"):
        return _cut_text(data)
    return data


def _cut_lines(data: bytes) -> bytes:
    end = data.rfind(b"\n") + 1
    # A line that is too long for every reader is seen as such before its end.
    return data[:end] if len(data) - end <= MAX_LINE_BYTES else data


def _cut_json(data: bytes) -> bytes:
    """Return the whole lines of a file of JSON lines; nothing of a list or of objects over several lines."""
    first, _, rest = data.partition(b"\n")
    try:
        return _cut_lines(data) if rest and isinstance(parse_json(first), dict) else b""
    except ValueError:
        return b""


def _cut_table(data: bytes) -> bytes:
    """Cut at the last end of a line outside a cell; return nothing of UTF-16, whose line ends are other bytes."""
    if data.startswith(tuple(BYTE_ORDER_MARKS)):
        return b""
    end, quotes = data.rfind(b"\n") + 1, data.count(b'"')
    quotes -= data.count(b'"', end)
    while end and quotes % 2:
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return data[:end]


def _cut_packed(data: bytes, name: str, limit: int) -> bytes:
    """Unpack what can be, cut it, and pack it again."""
    stream: Any
    if name.endswith(".gz"):
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    else:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
        stream = decompressor.stream_reader(data, read_across_frames=True)
    text = b""
    try:
        with suppress(EOFError):  # the end of what was fetched, which is not the end of the file
            # Not `read`, which loses what stands before an end that comes too early.
            while len(text) < limit and (piece := stream.read1(MIB)):
                text += piece
    except (OSError, zlib.error, zstandard.ZstdError):
        return data
    cut = (
        _cut_json
        if name.endswith(PACKED_JSON)
        else _cut_table
        if name.endswith(PACKED_TABLES)
        else _cut_lines
    )
    lines = cut(text)
    if not lines:
        return b""
    return gzip.compress(lines, 1) if name.endswith(".gz") else zstandard.compress(lines, 1)


def _cut_text(data: bytes) -> bytes:
    """Remove the first bytes of a letter at the end, if the text is UTF-8."""
    for end in range(len(data), max(len(data) - 4, 0), -1):
        with suppress(UnicodeDecodeError):
            data[:end].decode()
            return data[:end]
    return data
