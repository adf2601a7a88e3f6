"""Addresses of artifacts and files: a local path or `s3://bucket/key`."""

from collections.abc import Callable
from pathlib import Path

from anadil.core.errors import DataError, PreflightError

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
    """The same place as whoever is started in another directory must call it, without a slash at its end.

    `..` goes: a name that is kept must not need the directory that somebody stood in.
    """
    if "://" in uri:
        return uri.rstrip("/")
    path = Path(uri)
    return str(path.resolve() if ".." in path.parts else path.absolute())
