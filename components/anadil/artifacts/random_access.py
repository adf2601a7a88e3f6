"""Bytes of a file at any place, of a local file or of an object of S3 that is not copied whole.

Of an object whole blocks are fetched, and kept on this machine's own disk for all its processes, since neighbours are
asked for soon. Nothing is checked here but sizes and versions: whoever reads compares checksums.
"""

import hashlib
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from anadil.artifacts import storage
from anadil.artifacts.prefetch import RESERVE_BYTES, cache, remove_oldest
from anadil.artifacts.ranged import RangedStream
from anadil.artifacts.s3 import S3Ranges
from anadil.core.errors import DataError, IntegrityError
from anadil.core.files import write_atomic

log = logging.getLogger(__name__)

MAX_BLOCKS_BYTES = 32 * 1024**3
"""Most bytes of blocks on a machine. Training reads within a GiB of ids of each source at a time; the rest serves the next pass."""
SWEEP_BYTES = MAX_BLOCKS_BYTES // 16
"""Bytes that a process writes before it looks whether there are too many."""
_unswept: dict[Path, int] = {}
"""Folder of blocks -> bytes written since the last look. The first write looks at what earlier runs have left."""


class BytesAt(Protocol):
    """Bytes at any place of a file."""

    @property
    def name(self) -> str:
        """Path or URI, for messages."""

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return exactly these bytes."""

    def discard(self, start: int, num_bytes: int) -> bool:
        """Forget copies of bytes at a place; return True if the next read may give others."""


class LocalBytes:
    """Bytes of a local file, which stays open."""

    # Not mapped: the kernel kills who reads a mapped page of a file that was cut off, and what was read of a
    # mapped file counts as the process's memory.
    def __init__(self, path: Path, size: int) -> None:
        """Open a file that must have `size` bytes."""
        self.name = str(path)
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise missing(self.name) from None
        check_size(self.name, os.fstat(self._descriptor).st_size, size)

    def __del__(self) -> None:
        """Close the file; whoever holds many of these lets them go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, start: int, num_bytes: int) -> bytes:
        """See `BytesAt.read`."""
        data = os.pread(self._descriptor, num_bytes, start)
        if len(data) != num_bytes:
            raise IntegrityError(
                f"{self.name}: ends at byte {start + len(data):,}, and was longer before; let nobody write there and "
                "run again"
            )
        return data

    def discard(self, start: int, num_bytes: int) -> bool:  # noqa: ARG002  there are no copies
        """See `BytesAt.discard`."""
        return False


@dataclass
class RemoteBytes:
    """Bytes of an object of S3, fetched in blocks of `block_bytes` from `first_byte` on."""

    name: str
    """URI."""
    size: int
    """Bytes of the object."""
    folder: Path
    """Directory of fetched blocks."""
    first_byte: int
    block_bytes: int

    @cached_property
    def _version(self) -> str:
        """ETag and size, on which every request is conditional."""
        try:
            version = storage.store(self.name).version(self.name)
        except DataError:
            raise missing(self.name) from None
        check_size(self.name, int(version.rpartition("-")[2]), self.size)
        return version

    def read(self, start: int, num_bytes: int) -> bytes:
        """See `BytesAt.read`."""
        if start < self.first_byte:
            return self._fetched(start, num_bytes)
        begin = start - self.first_byte
        first, last = begin // self.block_bytes, max(begin, begin + num_bytes - 1) // self.block_bytes
        parts = []
        for number in range(first, last + 1):
            at = number * self.block_bytes
            low, high = max(begin, at) - at, min(begin + num_bytes, at + self.block_bytes) - at
            parts.append(self._of_block(number, low, high))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def discard(self, start: int, num_bytes: int) -> bool:
        """See `BytesAt.discard`."""
        begin = start - self.first_byte
        for number in range(begin // self.block_bytes, (begin + num_bytes - 1) // self.block_bytes + 1):
            self._copy_of(number).unlink(missing_ok=True)
        # Also where there is no copy: another thread or process may have removed it a moment ago.
        return True

    def _copy_of(self, number: int) -> Path:
        key = hashlib.sha256(f"{self.name} {self._version}".encode()).hexdigest()[:16]
        return self.folder / f"{key}-{number}"

    def _of_block(self, number: int, low: int, high: int) -> bytes:
        path = self._copy_of(number)
        try:
            with path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), high - low, low)
                # The least recently used go first, and many disks do not note when a file is read.
                with suppress(OSError):
                    os.utime(file.fileno())
            if len(data) == high - low:
                return data
        except FileNotFoundError:
            pass
        start = self.first_byte + number * self.block_bytes
        block = self._fetched(start, min(self.block_bytes, self.size - start))
        _keep(path, block)
        return block[low:high]

    # Asked for on condition of the version, with attempts of its own.
    def _fetched(self, start: int, num_bytes: int) -> bytes:
        stream = RangedStream(self.name, S3Ranges(self.name, self._version))
        stream.seek(start)
        buffer = bytearray(num_bytes)
        stream.readinto(buffer)
        return bytes(buffer)


def bytes_at(uri: str, size: int, *, first_byte: int, block_bytes: int) -> BytesAt:
    """Bytes of a file or an object that must have `size` bytes; see `RemoteBytes`."""
    if "://" not in uri:
        return LocalBytes(Path(uri), size)
    folder = cache() / "blocks"
    return RemoteBytes(uri, size, folder, first_byte, block_bytes)


def check_size(name: str, size: int, expected: int) -> None:
    """Refuse a file of another size."""
    if size != expected:
        raise IntegrityError(
            f"{name}: has {size:,} bytes, and its manifest says {expected:,}; copy it again, or remove the artifact and "
            "run its stage again"
        )


def missing(name: str) -> IntegrityError:
    """Make the error for a file that is not there."""
    return IntegrityError(
        f"{name}: missing, but its manifest names it; copy it again, or remove the artifact and run its stage again"
    )


def _keep(path: Path, block: bytes) -> None:
    """Keep a block for the next read, where the disk has room for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(path.parent).free < RESERVE_BYTES + len(block):
        log.debug("%s: less than %s bytes free; blocks are fetched again", path.parent, RESERVE_BYTES)
        return
    with suppress(OSError):
        write_atomic(path, block)
    _unswept[path.parent] = _unswept.get(path.parent, SWEEP_BYTES) + len(block)
    # Now and then, since a look at thousands of files takes time.
    if _unswept[path.parent] >= SWEEP_BYTES:
        _unswept[path.parent] = 0
        remove_oldest(path.parent, MAX_BLOCKS_BYTES)
