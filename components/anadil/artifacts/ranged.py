"""A remote file read piece by piece, as a local one: never more of it is here than what is read.

A storage gives the pieces (`s3`, `hub_files`) and refuses those of another file than the one that was planned
for. A piece that ends early is asked for again.
"""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Protocol

from anadil.core.errors import IntegrityError, PreflightError, RetryableError
from anadil.core.format import MIB
from anadil.core.retry import retried

log = logging.getLogger(__name__)

PIECE_BYTES = 8 * MIB
"""Asked for at a time: a request costs some 50 ms, as long as half of this takes at 80 MB/s."""
ATTEMPTS = 4
"""Times that a piece is asked for which comes cut off or not at all; each storage's client has tried each call itself."""
PAUSE_S = 0.5
"""Before the second attempt; doubled with each."""


class ReadableFile(Protocol):
    """File as readers need it: `pathlib.Path` is one."""

    @property
    def name(self) -> str:
        """The last part of its path."""

    @property
    def suffix(self) -> str:
        """Such as `.gz`."""

    def open(self, mode: str, buffering: int = -1, /) -> Any:
        """A binary stream that can be sought in; `mode` is `rb`, and each read is one of the file without `buffering`."""


class Ranges(Protocol):
    """Pieces of a remote file."""

    size: int
    """Bytes of the file."""

    def fetch(self, start: int, num_bytes: int) -> bytes:
        """Return a piece, or less of it where the answer is cut off."""


@dataclass(frozen=True, slots=True)
class RangedFile:
    """A remote file in the place of a `pathlib.Path`."""

    uri: str
    ranges: Callable[[], Ranges]
    """Makes the source of the pieces of one stream."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.uri).name

    @property
    def suffix(self) -> str:
        """Such as `.gz`."""
        return PurePosixPath(self.uri).suffix

    def open(self, mode: str = "rb", buffering: int = -1, /) -> BinaryIO:
        """A stream of its bytes, which asks for them as they are read; without `buffering` for no byte more."""
        assert mode == "rb"
        stream = RangedStream(self.uri, self.ranges())
        return io.BufferedReader(stream, PIECE_BYTES) if buffering else stream  # type: ignore[return-value]  # it reads as one does


class RangedStream(io.RawIOBase):
    """The bytes of a remote file; each read is one request."""

    def __init__(self, uri: str, ranges: Ranges) -> None:
        """Ask nothing yet."""
        super().__init__()
        self._uri = uri
        self._ranges = ranges
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place; nothing is asked for."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ranges.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """The place."""
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as there are bytes."""
        view = memoryview(buffer).cast("B")
        num_bytes = min(len(view), self._ranges.size - self._position)
        if num_bytes <= 0:
            return 0
        view[:num_bytes] = self._piece(self._position, num_bytes)
        self._position += num_bytes
        return num_bytes

    def _piece(self, start: int, num_bytes: int) -> bytes:
        def piece() -> bytes:
            data = self._ranges.fetch(start, num_bytes)
            if len(data) != num_bytes:
                raise RetryableError(
                    f"{self._uri}: {len(data):,} of {num_bytes:,} bytes from {start:,} on came"
                )
            return data

        try:
            return retried(piece, ATTEMPTS, PAUSE_S)  # also where bytes are not those of their checksum
        except RetryableError:
            raise RetryableError(
                f"{self._uri}: bytes {start:,} to {start + num_bytes:,} did not come whole {ATTEMPTS} times; check the "
                "network and any proxy, then run the same command again"
            ) from None


def changed(uri: str) -> IntegrityError:
    """Return the error of a file that is not the one that was planned for."""
    return IntegrityError(f"{uri}: changed while it was read; let nobody write there and run again")


def check_place(uri: str, content_range: str, start: int, *, is_complete: bool) -> None:
    """Refuse an answer that does not begin where it should; one without a range that `is_complete` may come from the start."""
    if not content_range.startswith(f"bytes {start}-") and (start or not is_complete):
        raise PreflightError(
            f"{uri}: the storage does not answer for a range of bytes (Range: bytes={start}-); "
            "copy the file to a disk, or use storage that knows ranges"
        )
