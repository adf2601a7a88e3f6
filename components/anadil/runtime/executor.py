"""Executors that run the tasks of a stage: processes of this machine, Ray, jobs of Kubernetes.

A task is a picklable value, a function of a module takes it, and its result is a folder that is finished by a
marker. So a task may be run again, by anybody, and nothing else in the stage knows which executor runs it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from anadil.artifacts import sealed_dir


class Task(Protocol):
    """A piece of work."""

    @property
    def name(self) -> str:
        """Return a name for messages."""

    @property
    def folder(self) -> Path:
        """Return the folder of its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTask:
    """A task whose result is a folder that is made once for a key; a subclass says all that a process needs for it."""

    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages."""
        return self.folder.name

    def is_done(self) -> bool:
        """Return whether the folder is there and whole."""
        return sealed_dir.verify(self.folder, {"key": self.key})

    def draft(self) -> AbstractContextManager[Path]:
        """Yield the folder to fill."""
        return sealed_dir.create(self.folder, {"key": self.key})


class Executor(Protocol):
    """Runs tasks side by side."""

    @property
    def num_workers(self) -> int:
        """Return the number of tasks that run at a time."""

    def __enter__(self) -> Self:
        """Begin; what is needed is started with the first tasks."""

    def __exit__(self, *error: object) -> None:
        """End what was started."""

    def map(
        self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None] = lambda: None
    ) -> None:
        """Call a function with every task; when it returns all of them are done.

        Args:
            function: Of a module, so that another process can import it; it must be safe to call it again.
            tasks: In the order in which they are begun.
            tick: Called about once a second.
        """
