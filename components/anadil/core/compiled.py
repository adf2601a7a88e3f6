"""Functions compiled to machine code by numba, once for each machine and version of their source.

numba checks the file of the function that is called, but not those of the functions and constants inside it. So the
folder of the compiled code is named by the digest of a stage's whole folder of kernels: none of them is ever stale.

numba is loaded with the first call, because only the processes that work on texts call a kernel.
"""

import functools
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from anadil.core.files import cache_folder, is_writable

F = TypeVar("F", bound=Callable[..., Any])


class Kernels:
    """The compiled functions of one stage."""

    def __init__(self, room: Path, others: Sequence[str] = (), constants: Sequence[str] = ()) -> None:
        """Name the sources of compiled code.

        Args:
            room: Folder of kernels: every module in it counts.
            others: Modules elsewhere, from `room`, with compiled functions or constants that they use.
            constants: Values from other rooms that are compiled in.
        """
        self.room, self._others, self._constants = room, tuple(others), tuple(constants)
        self._kernels: list[_Kernel] = []

    def compiled(self, function: F) -> F:
        """Decorator: compile at the first call with its types, or load what an earlier process compiled."""
        kernel = _Kernel(function, self._load)
        self._kernels.append(kernel)
        return cast("F", kernel)

    def _load(self) -> None:
        """Compile all functions, and put each under its name wherever it is imported: numba looks it up there."""
        for kernel in self._kernels:
            kernel.dispatcher = kernel.dispatcher or self._dispatcher(kernel.function)
        modules = {id(each.function.__globals__): each.function.__globals__ for each in self._kernels}
        for kernel, module in itertools.product(self._kernels, modules.values()):
            kernel.put_into(module)

    def _dispatcher(self, function: Callable[..., Any]) -> Callable[..., Any]:
        with _without_scipy():
            import numba
            import numba.np.arraymath  # its first call would load it
        from numba.core import entrypoints

        # Other packages' types are not needed here; those of awkward, which gigatoken brings, take 50 MB.
        entrypoints._already_initialized = True  # noqa: SLF001
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(self.folder)
        try:
            made: Callable[..., Any] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
            return made
        finally:
            numba.config.CACHE_DIR = before

    @cached_property
    def folder(self) -> Path:
        """Directory of the compiled code: beside the source, or a copy of it where that cannot be written.

        An image bakes it with `python -m anadil.STAGE.warm_kernels`; its root is read-only when it runs.
        """
        modules = [*sorted(self.room.glob("*.py")), *(self.room / f"{name}.py" for name in self._others)]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in modules))
        digest.update("\n".join(self._constants).encode())
        name = f"kernels-{digest.hexdigest()[:16]}"
        if chosen := os.environ.get("NUMBA_CACHE_DIR"):
            # As it is, the directory would keep a kernel whose constants have changed since.
            return Path(chosen) / name
        baked = self.room / "__pycache__" / name
        if is_writable(baked):
            return baked
        # This user's alone: others who can write compiled code could run theirs as us.
        private = cache_folder() / "kernels" / baked.name
        private.parent.mkdir(exist_ok=True)
        if baked.is_dir() and not private.exists():
            copy = Path(tempfile.mkdtemp(dir=private.parent)) / baked.name
            shutil.copytree(baked, copy)
            try:
                copy.rename(private)
            except OSError:  # another process was first
                shutil.rmtree(copy.parent)
        return private


@contextmanager
def _without_scipy() -> Iterator[None]:
    """Let numba do without SciPy's matrices, which no kernel has: .15 CPU seconds of imports at each start."""
    is_absent = "scipy" not in sys.modules
    if is_absent:
        sys.modules["scipy"] = None  # type: ignore[assignment]  # Python's own way to say that there is none
    try:
        yield
    finally:
        if is_absent:
            del sys.modules["scipy"]


class _Kernel:
    """Stand-in for a function until one of its stage is called."""

    def __init__(self, function: Callable[..., Any], load: Callable[[], None]) -> None:
        self.function = function
        self.dispatcher: Callable[..., Any] | None = None
        self._load = load
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if self.dispatcher is None:
            self._load()
        assert self.dispatcher is not None
        return self.dispatcher(*arguments)

    def put_into(self, module: dict[str, Any]) -> None:
        """Replace the stand-in by the compiled function, wherever the module names it."""
        for name, value in module.items():
            if value is self:
                module[name] = self.dispatcher
