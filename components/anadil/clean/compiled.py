"""Functions compiled to machine code by numba, once for each machine and version of their source.

numba looks at the file of the function that is called, not at those of the functions inside it. Here
the folder of the compiled code is named by the digest of all kernels, so that none of them is ever stale.

numba is loaded with the first call: of the processes of a run only those that work on texts call a kernel.
"""

import functools
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

KERNELS = (
    "characters", "columns", "line_kernel", "minhash", "ng_words", "ngram_kernel", "sentence_kernel", "text_kernel",
    "word_kernel",
)  # fmt: skip
"""Modules that compiled code is made of."""
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Decorator: compile at the first call with its types, or load what an earlier process compiled."""
    return cast("F", _Kernel(function))


class _Kernel:
    """Stands for a function until any of them is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._dispatcher: Callable[..., Any] | None = None
        _kernels.append(self)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if self._dispatcher is None:
            _load_all()
        assert self._dispatcher is not None
        return self._dispatcher(*arguments)

    def load(self) -> None:
        if self._dispatcher is None:
            self._dispatcher = _dispatcher(self.function)

    def put_into(self, module: dict[str, Any]) -> None:
        """Stand under its own name wherever it is imported: there numba looks for what a function calls."""
        for name, value in module.items():
            if value is self:
                module[name] = self._dispatcher


_kernels: list[_Kernel] = []


def _load_all() -> None:
    for kernel in _kernels:
        kernel.load()
    modules = {id(each.function.__globals__): each.function.__globals__ for each in _kernels}
    for kernel, module in itertools.product(_kernels, modules.values()):
        kernel.put_into(module)


def _dispatcher(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = before or str(cache_folder())
    try:
        made: Callable[..., Any] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
        return made
    finally:
        numba.config.CACHE_DIR = before


@cache
def cache_folder() -> Path:
    """Where the compiled code lies: beside the source, or a copy of it where that cannot be written.

    An image bakes it with `python -m anadil.clean.warm_kernels`; its root is read-only when it runs.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join((here / f"{name}.py").read_bytes() for name in KERNELS)).hexdigest()
    baked = here / "__pycache__" / f"kernels-{digest[:16]}"
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
