"""Directories that a run makes for itself and its next start: each is complete, or absent.

One is filled beside its place, sealed by a manifest as an artifact is, and renamed. Before reuse its origin and every byte
are compared, so that neither other settings nor a torn disk are taken for it.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.prefetch import BOOT
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import IntegrityError

log = logging.getLogger(__name__)

KIND = "work"
PARTIAL = ".partial"


@contextmanager
def create(folder: Path, origin: Mapping[str, str], owner: str = "") -> Iterator[Path]:
    """Yield the draft of a directory to fill; it is sealed and renamed when the block ends well.

    Args:
        folder: Its place. A directory there is replaced, unless it has the same origin: another process was faster then,
            and others may be reading it.
        origin: What decides the content.
        owner: Owner of the draft in place of this process: the host, if a next start in another process shall remove what
            a killed one has left.
    """
    # Several processes may make the same directory: each has a draft of its own, with equal bytes.
    draft = _draft_of(folder, owner or str(os.getpid()))
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        artifact.seal(draft, kind=KIND, origin=origin)
        if folder.exists() and not _is_of(folder, origin):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            draft.rename(folder)
        except OSError:
            if not exists(folder):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def filled(folder: Path, origin: Mapping[str, str], fill: Callable[[Path], object]) -> Path:
    """Return a directory of this origin, which `fill` makes from an empty draft unless it is there."""
    if not verify(folder, origin):
        with create(folder, origin) as draft:
            fill(draft)
    return folder


def exists(folder: Path) -> bool:
    """Return whether a directory was finished; `verify` compares its bytes."""
    return (folder / MANIFEST).is_file()


def verify(folder: Path, origin: Mapping[str, str], *, once_a_boot: bool = False) -> bool:
    """Return whether a directory has this origin and all its bytes are as written; remove a damaged one.

    With `once_a_boot`, large files are read once a node and boot: a restart finds a mark beside the directory, and trusts
    files that nobody has touched since.
    """
    try:
        manifest = artifact.read_manifest(str(folder))
        if manifest is None or manifest.origin != origin:
            return False
        mark = _mark(folder) if once_a_boot else None
        seen = _identity(folder) if mark else ""
        if mark is None or not mark.is_file() or mark.read_text(encoding="utf-8") != seen:
            artifact.verify_files(folder, manifest, str(folder))
            if mark is not None:  # one that a kill cuts off equals nothing
                mark.parent.mkdir(exist_ok=True)
                mark.write_text(seen, encoding="utf-8")
    except IntegrityError as error:
        log.warning("%s; making it again", str(error).partition("; run ")[0])
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _is_of(folder: Path, origin: Mapping[str, str]) -> bool:
    try:
        manifest = artifact.read_manifest(str(folder))
    except IntegrityError:
        return False
    return manifest is not None and manifest.origin == origin


def remove_draft(folder: Path, pid: int) -> None:
    """Remove what a process that was killed has left of a directory."""
    shutil.rmtree(_draft_of(folder, str(pid)), ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes have left; nobody else may work in the folder."""
    for draft in folder.rglob(f"*{PARTIAL}"):
        shutil.rmtree(draft, ignore_errors=True)


def _draft_of(folder: Path, owner: str) -> Path:
    return folder.with_name(f"{folder.name}.{owner}{PARTIAL}")


def _mark(folder: Path) -> Path | None:
    """Return this node's mark of what it has verified since boot; None if the kernel does not tell boots apart."""
    if not BOOT.is_file():
        return None
    return folder.with_name("verified") / f"{folder.name}-{BOOT.read_text(encoding='utf-8').strip()}"


def _identity(folder: Path) -> str:
    """State of all files that changes where one is written to, replaced, added or removed; nothing is read."""
    stats = {file.relative_to(folder).as_posix(): file.stat() for file in folder.rglob("*")}
    places = {
        name: (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats.items()
    }
    return json.dumps(dict(sorted(places.items())))
