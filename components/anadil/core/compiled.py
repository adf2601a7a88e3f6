"""Functions compiled to machine code by numba, once for each machine and version of their source.

numba looks at the file of the function that is called, not at those of the functions inside it. Here
the folder of the compiled code is named by the digest of all kernels of a stage, so that none of them is
ever stale.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


class Kernels:
    """The compiled functions of one stage."""

    def __init__(self, room: Path, modules: Sequence[str]) -> None:
        """Name what compiled code is made of; the list itself, in its module, is part of it.

        Args:
            room: The stage's folder.
            modules: Names of its modules that hold compiled functions, or constants that they use.
        """
        self.room = room
        self.modules = tuple(modules)

    def compiled(self, function: F) -> F:
        """Decorator: compile at the first call with its types, or load what an earlier process compiled."""
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = before or str(self.folder)
        try:
            return cast("F", numba.njit(cache=True, nogil=True, error_model="numpy")(function))
        finally:
            numba.config.CACHE_DIR = before

    @cached_property
    def folder(self) -> Path:
        """Where the compiled code lies: beside the source, or a copy of it where that cannot be written.

        An image bakes it with `python -m anadil.STAGE.warm_kernels`; its root is read-only when it runs.
        """
        sources = b"".join((self.room / f"{name}.py").read_bytes() for name in self.modules)
        baked = self.room / "__pycache__" / f"kernels-{hashlib.sha256(sources).hexdigest()[:16]}"
        if _is_writable(baked):
            return baked
        own = _user_folder() / baked.name
        if baked.is_dir() and not own.exists():
            copy = Path(tempfile.mkdtemp(dir=own.parent)) / baked.name
            shutil.copytree(baked, copy)
            try:
                copy.rename(own)
            except OSError:  # another process was first
                shutil.rmtree(copy.parent)
        return own


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _user_folder() -> Path:
    """A folder of this user's own: compiled code that others may write would be theirs to run as us."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anadil" / "kernels"
    if _is_writable(home):
        return home
    return Path(tempfile.mkdtemp(prefix="anadil-kernels-"))
