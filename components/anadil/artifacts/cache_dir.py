"""Directories that a run makes for itself and for its next start: sealed when whole, checked before reuse."""

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


def is_there(folder: Path) -> bool:
    """Whether a directory was finished; see `is_whole` for its bytes."""
    return (folder / MANIFEST).is_file()


def is_whole(folder: Path) -> bool:
    """Whether a directory is there with every byte as it was written; a damaged one is removed."""
    try:
        manifest = artifact.read_manifest(str(folder))
        if manifest is None:
            return False
        artifact.verify_files(folder, manifest, str(folder))
    except IntegrityError as error:
        log.warning("%s; making it again", str(error).partition("; run ")[0])
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


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
