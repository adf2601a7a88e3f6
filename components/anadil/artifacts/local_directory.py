"""Local directories: what lies in one, whether it may be written, and that it is on the disk."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.format import human_bytes


def files_below(folder: Path, parents: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield every file below, also behind links, but for hidden names; a link back to one of `parents` is not followed."""
    # Desktops leave `.DS_Store` and `._page.txt`. `Path.rglob` follows no link and silently passes over directories that it
    # may not read.
    parents = (*parents, folder.resolve())
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:  # taken away meanwhile
        return
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); check its rights") from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            yield entry
        elif entry.resolve() not in parents:
            yield from files_below(entry, parents)


def names_below(folder: Path) -> Iterator[str]:
    """Yield paths from a folder to every file below; links are named, not followed."""

    # `Path.rglob` silently skips a directory that it may not read: a sound artifact would lack files, and be removed.
    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # taken away meanwhile
            raise error

    for place, folders, files in os.walk(folder, onerror=refuse):
        links = (each for each in folders if (Path(place) / each).is_symlink())
        for file in (*files, *links):
            yield (Path(place) / file).relative_to(folder).as_posix()


def check_directory(path: Path, key: str) -> None:
    """Make sure that a place, given by `key`, is a directory or can become one."""
    for place in (path, *path.parents):
        try:
            if place.is_dir():
                return
        except OSError as error:  # such as a name that is too long
            kind = PreflightError if isinstance(error, PermissionError) else RecipeError
            raise kind(f"{key}: {place}: {error.strerror}; give another place") from None
        if os.path.lexists(place):
            raise RecipeError(f"{key}: {place} is a file, not a directory; give another place or remove it")


def check_writable(path: Path, key: str) -> None:
    """Make sure that a directory, given by `key`, can be written or made."""
    check_directory(path, key)
    there = next(place for place in (path, *path.parents) if place.is_dir())
    try:
        # Not `os.access`, which lets root write everywhere, into /proc too.
        tempfile.TemporaryFile(dir=there).close()
    except OSError:
        # A container's user is another one than whoever owns the folder that is mounted.
        ours = ', or docker run --user "$(id -u):$(id -g)"' if os.environ.get("ANADIL_IMAGE") else ""
        raise PreflightError(f"{key}: {there} cannot be written; give another place{ours}") from None


def refuse_occupied(uri: str) -> None:
    """Make sure that a local place for an artifact is free, so that nobody's files are overwritten."""
    path = Path(uri)
    if "://" not in uri:
        check_directory(path.parent, uri)
    if "://" in uri or not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    raise DataError(f"{uri}: holds files that are no artifact; give another place or remove them")


def flush_directory(path: Path) -> None:
    """Bring files and then directories to the disk; remove them all if that fails."""
    below = sorted(path.rglob("*"))
    try:
        for file in [
            *(file for file in below if not file.is_dir()),
            *(file for file in below if file.is_dir()),
        ]:
            flush(file)
        flush(path)
    except OSError:
        # After a failed fsync the kernel calls pages clean that are not on the disk: no later sync would bring them there.
        shutil.rmtree(path, ignore_errors=True)
        raise


def flush(path: Path) -> None:
    """Bring one file's bytes, or one directory's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # The words of the kernel name no file.
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def link(source: Path, target: Path) -> None:
    """Put a file in a second place, without a copy where the file system can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, target)


def check_space(path: Path, num_bytes: int) -> None:
    """Check that the disk of a path has room."""
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        raise PreflightError(
            f"{path.parent}: {human_bytes(num_bytes)} are to be written there and {human_bytes(free)} are free; free some, "
            "or give another --out"
        )
