"""Folders that are whole or not there: written beside, sealed by a marker, renamed.

A marker holds the hash of what the folder was made from and the digest of every file in it. Both are
checked before a folder is taken as done, so that neither other settings nor a torn disk pass for it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARKER = "marker.json"
PARTIAL = ".partial"


def origin_hash(*causes: object) -> str:
    """Hash of what decides a folder's content, given as JSON values."""
    return hashlib.sha256(json.dumps(causes, sort_keys=True).encode()).hexdigest()[:32]


def is_done(folder: Path, key: str) -> bool:
    """Whether a folder was made from the same and holds what was written; every byte is read."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return bool(marker["key"] == key and marker["files"] == _digests(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def written_whole(folder: Path, key: str) -> Iterator[Path]:
    """A draft of a folder to fill; it takes the folder's place when the block ends well.

    Two processes may make the same folder: each has a draft of its own, and what they write is equal.

    Args:
        folder: Its place.
        key: `origin_hash` of what it is made from.
    """
    draft = _draft_of(folder, os.getpid())
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        marker = {"key": key, "files": _digests(draft)}
        (draft / MARKER).write_text(json.dumps(marker), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def remove_draft(folder: Path, pid: int) -> None:
    """Remove what a process that was killed has left of a folder."""
    shutil.rmtree(_draft_of(folder, pid), ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes have left; nobody else may work in the folder."""
    for draft in folder.rglob(f"*{PARTIAL}"):
        shutil.rmtree(draft, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write a small file of a draft."""
    # Dropped text may hold lone surrogates.
    path.write_bytes(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def read_json(path: Path) -> Any:
    """Read a small file of a folder that is done."""
    return json.loads(path.read_text(encoding="utf-8"))


def _draft_of(folder: Path, pid: int) -> Path:
    return folder.with_name(f"{folder.name}.{pid}{PARTIAL}")


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MARKER:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(folder).as_posix()] = f"{path.stat().st_size} {digest}"
    return digests
