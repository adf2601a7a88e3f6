"""Addresses of artifacts and files, and what every storage answers.

A URI is a local path or `s3://bucket/key`. Reads and writes of whole directories are what
artifacts need; `storage.LocalStore` and `s3.S3` answer the same calls.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anadil.errors import DataError, PreflightError

MANIFEST = "manifest.json"
"""Written last in a directory, so that its presence says that the directory is whole."""

Count = Callable[[int], None]
"""Gets the bytes of each piece that was copied; raises to stop."""


class AlreadyThereError(DataError):
    """Another run has put a finished directory there first."""


class ConditionsError(PreflightError):
    """The storage cannot write on condition that nobody else has."""


def join(root: str, *parts: str) -> str:
    """A URI below another."""
    return "/".join([root.rstrip("/") or "/", *parts])


def absolute(uri: str) -> str:
    """The same place as whoever is started in another directory must call it, without a slash at its end."""
    return uri.rstrip("/") if "://" in uri else str(Path(uri).absolute())


class Store(Protocol):
    """One kind of storage."""

    def exists(self, uri: str) -> bool:
        """Whether a file is there."""
        ...

    def read(self, uri: str) -> bytes:
        """The bytes of one small file."""
        ...

    def part(self, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        """Some bytes of a file and the size of all of it; a negative start counts from its end.

        Raises:
            DataError: There is no such file, or it cannot be read.
        """
        ...

    def write(self, uri: str, content: bytes) -> None:
        """Make one small file hold these bytes, in one step."""
        ...

    def files(self, pattern: str) -> list[str]:
        """Sorted URIs of the files that a path, directory or glob names."""
        ...

    def sizes(self, pattern: str) -> dict[str, int]:
        """Bytes of each of those files, by its URI."""
        ...

    def put_directory(self, source: Path, uri: str) -> None:
        """Make `uri` hold what `source` holds, its manifest last; `source` is moved away.

        Raises:
            AlreadyThereError: Another run has finished it first; `source` is left.
            DataError: Something else is there.
        """
        ...

    def directory_sizes(self, uri: str) -> dict[str, int]:
        """Bytes of each file below `uri`, by its relative name."""
        ...

    def download(self, uri: str, path: Path, count: Count | None = None) -> None:
        """Copy one file to a local path, which is there when it is whole.

        Raises:
            DataError: There is no such file.
        """
        ...

    def remove_directory(self, uri: str) -> None:
        """Remove `uri` and all below it, its manifest first."""
        ...

    def fingerprint(self, uri: str) -> str:
        """A text that changes when the bytes of the file do."""
        ...

    def directories(self, uri: str) -> list[str]:
        """Directories right below `uri`, oldest manifest first, without those that have none."""
        ...
