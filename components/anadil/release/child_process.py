"""A command of `anadil` in another process: a notebook keeps its signals, logs and event loop."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anadil.core import errors
from anadil.core.errors import AnadilError
from anadil.recipe.sections import Recipe
from anadil.release.progress_display import PROGRESS, Display, in_notebook

ERROR = "error: "
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProcess:
    """A process that has ended."""

    number: int
    """Process id."""
    exit_code: int
    stdout: str


def run_command(arguments: Sequence[str], say: Say | None, environment: Mapping[str, str]) -> EndedProcess:
    """Run a command of this program to its end.

    Args:
        arguments: Behind `anadil`.
        say: Gets each line of its log; None: a notebook shows a bar with the log in a fold, and elsewhere lines are printed.
        environment: Variables beside those of this process.
    """
    lines: list[str] = []
    display = Display(arguments[0]) if say is None and in_notebook() else None
    tell = say or display or print

    def hear(line: str) -> None:
        lines.append(line)
        tell(line)

    command = [sys.executable, "-m", "anadil", *arguments]
    ended = None
    try:
        ended = follow(command, hear, {**PROGRESS, **environment} if display else environment)
    finally:
        # Also where the caller's `say` raises: a bar that goes on moving would be a lie.
        if display:
            display.end(ended.exit_code if ended else errors.INTERRUPTED)
    if ended.exit_code == errors.INTERRUPTED:
        raise KeyboardInterrupt
    if ended.exit_code:
        first = next((place for place, line in enumerate(lines) if ERROR in line), None)
        why = f"exit code {ended.exit_code}" if first is None else _message(lines[first:])
        raise errors.BY_EXIT_CODE.get(ended.exit_code, AnadilError)(why)
    return ended


def _message(lines: Sequence[str]) -> str:
    """The text of an error, with its lines of mistakes, which are indented."""
    more = []
    for line in lines[1:]:
        if not line.startswith("  "):
            break
        more.append(line)
    return "\n".join([lines[0].partition(ERROR)[2], *more])


def follow(command: Sequence[str], say: Say, environment: Mapping[str, str]) -> EndedProcess:
    """Run a process and pass its stderr on by lines; after an interrupt it may save first."""
    # A file, since a pipe that nobody reads meanwhile would stop a process that prints much.
    with (
        tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as stdout,
        # A process group of its own: a notebook interrupts the kernel's whole group, and a second signal would end
        # the run before it has saved.
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace", start_new_session=True, env={**os.environ, **environment},
        ) as process,
    ):  # fmt: skip
        assert process.stderr is not None
        while True:
            try:
                for line in process.stderr:
                    say(line.rstrip("\n"))
                code = process.wait()
                stdout.seek(0)
                return EndedProcess(number=process.pid, exit_code=code, stdout=stdout.read())
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGINT)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                raise


@contextmanager
def recipe_file(recipe: Recipe | str) -> Iterator[str]:
    """Name of a recipe for the command line."""
    if isinstance(recipe, str):
        yield recipe
        return
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder) / "notebook.json"
        path.write_text(recipe.model_dump_json(), encoding="utf-8")
        yield str(path)
