"""Directories that a run makes for itself and for its next start: sealed when whole, checked before reuse."""

import json
import logging
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import IntegrityError

log = logging.getLogger(__name__)

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each start of the machine, and on each machine."""


def is_there(folder: Path) -> bool:
    """Whether a directory was finished; see `is_whole` for its bytes."""
    return (folder / MANIFEST).is_file()


def is_whole(folder: Path) -> bool:
    """Whether a directory is there with every byte as it was written; a damaged one is removed.

    Bytes are read once a node and boot: a restart finds a mark, and trusts files that nobody has touched since.
    """
    try:
        manifest = artifact.read_manifest(str(folder))
        if manifest is None:
            return False
        seen = _identity(folder)
        mark = _mark(folder)
        if mark is None or not mark.is_file() or mark.read_text(encoding="utf-8") != seen:
            artifact.verify_files(folder, manifest, str(folder))
            _note(mark, seen)
    except IntegrityError as error:
        log.warning("%s; making it again", str(error).partition("; run ")[0])
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _mark(folder: Path) -> Path | None:
    """Where this node notes, until its next boot, what it has verified; None where the kernel does not tell boots apart."""
    if not BOOT.is_file():
        return None
    return folder.with_name("verified") / f"{folder.name}-{BOOT.read_text(encoding='utf-8').strip()}"


def _note(mark: Path | None, seen: str) -> None:
    """Write a mark; one that a kill cuts off equals nothing."""
    if mark is not None:
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(seen, encoding="utf-8")


def _identity(folder: Path) -> str:
    """What changes where a file is written to, replaced, added or removed; nothing is read for it."""
    stats = {file.relative_to(folder).as_posix(): file.stat() for file in folder.rglob("*")}
    places = {
        name: (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats.items()
    }
    return json.dumps(dict(sorted(places.items())))


@contextmanager
def making(folder: Path, origin: Mapping[str, str]) -> Iterator[Path]:
    """An empty directory to fill, which is sealed and becomes `folder` when the block ends.

    Nodes may share the disk: each fills one under its own name, all with the same bytes, and
    the first to finish stays.

    Args:
        folder: The directory to make; only a process that is alone on its node may do so.
        origin: What decides the content.
    """
    draft = folder.with_name(f"{folder.name}.partial-{socket.gethostname()}")
    shutil.rmtree(draft, ignore_errors=True)  # of a run that was killed
    draft.mkdir(parents=True)
    try:
        yield draft
        artifact.seal(draft, kind="tokens", origin=origin)
        try:
            draft.rename(folder)
        except OSError:
            # Another node was faster, and its processes may be reading theirs already.
            if not is_there(folder):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
