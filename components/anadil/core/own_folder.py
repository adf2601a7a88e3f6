"""Folders of this user's own, wherever the machine lets them write.

A container may run as a user that nobody knows, on a read-only root, with nothing but `/tmp` to write to.
"""

import os
import tempfile
from pathlib import Path

from anadil.core.errors import PreflightError


def cache_folder() -> Path:
    """Folder for what can be made again: below XDG_CACHE_HOME or `~/.cache`, or where neither can be written below TMPDIR."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # Source: XDG Base Directory Specification: a path that is not absolute is ignored.
        home = (base if base.is_absolute() else Path.home() / ".cache") / "anadil"
    except RuntimeError:  # neither HOME nor an entry in /etc/passwd
        return temporary_folder("anadil-cache")
    return home if is_writable(home) else temporary_folder("anadil-cache")


def work_folder() -> Path:
    """Folder for what outlives a killed run whose artifacts are remote: ANADIL_WORK, or a folder below TMPDIR."""
    place = os.environ.get("ANADIL_WORK")
    return Path(place) if place else temporary_folder("anadil-work")


def temporary_folder(name: str) -> Path:
    """A folder below TMPDIR, the same one for all processes of the user, that nobody else may write to."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()  # of a link the mode is 777
    if stat.st_uid != os.getuid() or stat.st_mode & 0o022:
        raise PreflightError(
            f"{folder}: others may write there; remove it, or set TMPDIR to a directory of your own"
        )
    return folder


def is_writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
