"""An object of S3 read piece by piece, as a file: never more of it is here than what is read.

Each piece is asked for on the condition that the object is still the one that was planned for, and its length
and its place are checked. A piece that ends early is asked for again.
"""

import io
import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Protocol

from anadil.artifacts.s3 import s3_client, s3_errors, split_uri
from anadil.core.aws import error_status
from anadil.core.errors import IntegrityError, PreflightError, RetryableError
from anadil.core.format import MIB

log = logging.getLogger(__name__)

PIECE_BYTES = 8 * MIB
"""Asked for at a time: a request costs some 50 ms, as long as half of this takes at 80 MB/s."""
ATTEMPTS = 4
"""Times that a piece is asked for which comes cut off or not at all; botocore has tried each call itself."""
PAUSE_S = 0.5
"""Before the second attempt; doubled with each."""
CHANGED = (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
"""Statuses of a server's answer where the object is no longer the one that was asked for."""


class ReadableFile(Protocol):
    """File as readers need it: `pathlib.Path` is one."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        ...

    @property
    def suffix(self) -> str:
        """Such as `.gz`."""
        ...

    def open(self, mode: str, /) -> Any:
        """A binary stream that can be sought in; `mode` is `rb`."""
        ...


@dataclass(frozen=True, slots=True)
class RangedFile:
    """An object of S3 in the place of a `pathlib.Path`."""

    uri: str
    version: str
    """As `S3.version` gave it: another object of the same name is refused."""

    @property
    def name(self) -> str:
        """The last part of its key."""
        return PurePosixPath(self.uri).name

    @property
    def suffix(self) -> str:
        """Such as `.gz`."""
        return PurePosixPath(self.uri).suffix

    def open(self, mode: str = "rb", /) -> BinaryIO:
        """A stream of its bytes, which asks for them as they are read."""
        assert mode == "rb"
        return io.BufferedReader(RangedStream(self.uri, self.version), PIECE_BYTES)


class RangedStream(io.RawIOBase):
    """The bytes of an object; each read is one request."""

    def __init__(self, uri: str, version: str) -> None:
        """Ask nothing yet; `version` is ETag and size, joined by `-`."""
        super().__init__()
        self._uri = uri
        self._tag, _, size = version.rpartition("-")
        self._size = int(size)
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place; nothing is asked for."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """The place."""
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as there are bytes.

        Raises:
            IntegrityError: The object has changed or is gone.
            RetryableError: The bytes do not come, or come cut off again and again.
        """
        view = memoryview(buffer).cast("B")
        num_bytes = min(len(view), self._size - self._position)
        if num_bytes <= 0:
            return 0
        view[:num_bytes] = self._piece(self._position, num_bytes)
        self._position += num_bytes
        return num_bytes

    def _piece(self, start: int, num_bytes: int) -> bytes:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with s3_errors(self._uri):
                    data = self._answer(start, num_bytes)
                if len(data) == num_bytes:
                    return data
                log.warning(
                    "%s: %d bytes from %d on were asked for, %d came; time %d of %d",
                    self._uri, num_bytes, start, len(data), attempt, ATTEMPTS,
                )  # fmt: skip
            except RetryableError as error:  # also of bytes that are not those of their checksum
                log.warning("%s; time %d of %d", error, attempt, ATTEMPTS)
            if attempt < ATTEMPTS:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
        raise RetryableError(
            f"{self._uri}: bytes {start:,} to {start + num_bytes:,} did not come whole {ATTEMPTS} times; check the "
            "network and any proxy, then run the same command again"
        )

    def _answer(self, start: int, num_bytes: int) -> bytes:
        bucket, key = split_uri(self._uri)
        client = s3_client()
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{start + num_bytes - 1}"}
        try:
            answer = client.get_object(**asked, IfMatch=self._tag)
        except client.exceptions.ClientError as error:
            if error_status(error) in CHANGED:
                raise self._changed() from None
            raise
        try:
            place = str(answer.get("ContentRange", ""))
            total = place.rpartition("/")[2]
            # Some servers know no conditions; then the answer itself tells.
            if answer["ETag"] != self._tag or (total.isdigit() and int(total) != self._size):
                raise self._changed()
            if not place.startswith(f"bytes {start}-") and (start or answer["ContentLength"] != num_bytes):
                raise PreflightError(
                    f"{self._uri}: the storage does not answer for a range of bytes (Range: bytes={start}-); "
                    "copy the file to a disk, or use storage that knows ranges"
                )
            data: bytes = answer["Body"].read()
        finally:
            answer["Body"].close()
        return data

    def _changed(self) -> IntegrityError:
        return IntegrityError(f"{self._uri}: changed while it was read; let nobody write there and run again")
