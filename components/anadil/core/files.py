"""Local files and directories that are complete or absent, locks among processes of a machine, and digests of files."""

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a draft beside a file; it takes the file's place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield an empty draft beside a directory; it takes that place when the block ends well.

    Where another process finished the directory first, its directory stays.
    """
    draft = _draft(path)
    draft.mkdir(parents=True)
    try:
        yield draft
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a complete file or none; text as UTF-8, with `?` for lone surrogates."""
    with atomic_file(path) as draft:
        draft.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))


def _draft(path: Path) -> Path:
    # Each thread has a draft of its own: several may make the same file.
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")


def file_lock(path: Path, wait_s: float = -1) -> "BaseFileLock":
    """Lock among processes, freed by the kernel with its process; `filelock.Timeout` after `wait_s`, -1 for never."""
    from filelock import FileLock  # .1 s to import

    path.parent.mkdir(parents=True, exist_ok=True)
    # Other users of the machine take the same lock. A file without locks would be no lock at all.
    return FileLock(path, wait_s, mode=0o666, thread_local=False, fallback_to_soft=False)


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
