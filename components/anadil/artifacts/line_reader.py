"""Lines of bounded length out of plain and compressed files: the reader of all files of lines.

Neither a line without an end nor a compressed file that unpacks to terabytes takes more memory than a few times
`MAX_LINE_BYTES`.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from anadil.artifacts.ranged import ReadableFile
from anadil.core.errors import DataError
from anadil.core.format import MIB, human_bytes

PLAIN_LINES = (".jsonl", ".ndjson")
"""Names of files with a JSON value a line; BigQuery and others write the second."""
PACKED_LINES = tuple(name + packed for name in PLAIN_LINES for packed in (".gz", ".zst"))
MAX_LINE_BYTES = 16 * MIB
"""A longer line is not kept: our choice, several books long."""
MAX_ZSTD_WINDOW_BYTES = 128 * MIB
"""Largest window that `zstd -d` accepts by default; a frame may ask for gigabytes."""
ZSTD_READ_BYTES = 512
"""Bytes of a packed file that are read at a time: four bytes are a block of 128 KiB at most, so no more than 16 MiB come of it."""
SKIP_BYTES = MIB
"""Bytes of a line that is too long, read and forgotten at a time."""
MAX_FRAME_HEADER_BYTES = 18
"""Source: RFC 8878, section 3.1.1.1, with the magic number."""
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""Exceptions that the decompressors raise on damaged bytes; errors of the disk are none of them."""


class WindowError(zstandard.ZstdError):
    """A frame of zstd asks for more memory than it may have; nothing is damaged."""

    def __init__(self, num_bytes: int, most: int) -> None:
        super().__init__(f"zstd window of {human_bytes(num_bytes)} is larger than {human_bytes(most)}")
        self.log = (num_bytes - 1).bit_length()


@dataclass(frozen=True, slots=True)
class TooLong:
    """Stands for a line, or another unit, over `MAX_LINE_BYTES`."""

    num_bytes: int
    unit: str = "line"

    def __str__(self) -> str:
        """Its fault."""
        return f"{self.unit} of {human_bytes(self.num_bytes)} is longer than {human_bytes(MAX_LINE_BYTES)}"


def bounded_lines(path: Path, suffix: str | None = None) -> Iterator[bytes | TooLong]:
    """Yield the lines of a file, each with its end; `suffix` stands for its own and says whether it is packed."""
    return (line for _, line in lines_with_offsets(path, suffix))


def lines_with_offsets(
    path: ReadableFile, suffix: str | None = None, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, bytes | TooLong]]:
    """The lines that begin in a range of a file, each with the byte at which it begins.

    Args:
        path: The file; `.gz` and `.zst` are unpacked, which takes a range that begins at 0.
        suffix: Instead of its own.
        end: Byte behind the range; None: the end of the file.
    """
    with unpacked(path, path.suffix if suffix is None else suffix) as file:
        offset = start
        if start:
            # The line that begins before the range is read with the range before.
            file.seek(start - 1)
            offset += _skipped(file) - 1
        while (end is None or offset < end) and (piece := file.readline(MAX_LINE_BYTES)):
            line: bytes | TooLong = piece
            if len(piece) == MAX_LINE_BYTES and not piece.endswith(b"\n"):
                line = TooLong(len(piece) + _skipped(file))
            yield offset, line
            offset += line.num_bytes if isinstance(line, TooLong) else len(piece)


class _GzipFile(gzip.GzipFile):
    def close(self) -> None:
        with self._source:
            super().close()

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        super().__init__(fileobj=source, mode="rb")


class _Unpacked(io.RawIOBase):
    """Stream of what single reads unpack: a fuller read that meets damage loses what it unpacked before."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return int(self._source.readinto1(target))

    def close(self) -> None:
        self._source.close()
        super().close()


class ZstdFile(io.BufferedIOBase):
    """Frames of zstd, unpacked. Unlike the library's stream it notices a file that ends within a frame."""

    def __init__(self, source: BinaryIO, max_window_bytes: int = MAX_ZSTD_WINDOW_BYTES) -> None:
        """Take a stream of packed bytes, and the most memory that a frame may ask for."""
        self._source = source
        self._max_window_bytes = max_window_bytes
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=max_window_bytes)
        self._packed, self._unpacked = b"", io.BytesIO()
        self._frame: Any = None

    def readinto1(self, target: Any) -> int:
        """Fill a buffer with what one read of the source gives, 0 bytes at the end."""
        while not (count := self._unpacked.readinto(target)):
            self._packed = self._packed or self._source.read(ZSTD_READ_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("compressed data ended within a frame")
                return 0
            if self._frame is None:
                self._check_window()
                self._frame = self._decompressor.decompressobj()
            self._unpacked = io.BytesIO(self._frame.decompress(self._packed))
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        return count

    def _check_window(self) -> None:
        """Refuse a frame that asks for too much memory, by its header: the library calls that damage."""
        if len(self._packed) < MAX_FRAME_HEADER_BYTES:
            self._packed += self._source.read(ZSTD_READ_BYTES)
        try:
            window = zstandard.get_frame_parameters(self._packed).window_size
        except zstandard.ZstdError:
            return  # damaged, or a header that the file ends in; the decompressor says which
        if window > self._max_window_bytes:
            raise WindowError(window, self._max_window_bytes)

    def close(self) -> None:
        """Close the source too."""
        self._source.close()
        super().close()


class _NamedZstdFile(ZstdFile):
    def __init__(self, path: ReadableFile) -> None:
        super().__init__(path.open("rb"))
        self._name = path.name

    def readinto1(self, target: Any) -> int:
        try:
            return super().readinto1(target)
        except WindowError as error:
            raise DataError(
                f"{self._name}: {error}; it was packed with `zstd --long={error.log}`: unpack it with "
                f"`zstd -d --long={error.log} {self._name}`, and pack it without --long"
            ) from None


def unpacked(path: ReadableFile, suffix: str) -> BinaryIO:
    """Return a stream of a file's content; it never holds more than a window of it."""
    if suffix.lower().endswith(".gz"):
        return io.BufferedReader(_Unpacked(_GzipFile(path.open("rb"))))
    if suffix.lower().endswith(".zst"):
        return io.BufferedReader(_Unpacked(_NamedZstdFile(path)))
    stream: BinaryIO = path.open("rb")
    return stream


def _skipped(file: BinaryIO) -> int:
    num_bytes = 0
    while piece := file.readline(SKIP_BYTES):
        num_bytes += len(piece)
        if piece.endswith(b"\n"):
            break
    return num_bytes
