"""`anadil run` from Python, in another process: a notebook keeps its signals, logs and event loop."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anadil.core import errors
from anadil.core.errors import AnadilError, DataError
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.release.runs import WORK, Run, list_runs

ERRORS = {kind.exit_code: kind for kind in AnadilError.__subclasses__()}
ERROR = "error: "


def run(
    recipe: Recipe | str = "smoke",
    *,
    work: str | Path = WORK,
    overrides: Sequence[str] = (),
    until: str = FLOW[-1].name,
    say: Callable[[str], object] = print,
) -> Run:
    """Run the pipeline on this machine and wait for its end; existing artifacts are reused.

    An interrupt (the notebook's stop button) ends it after it has saved; the same call resumes it.

    Args:
        recipe: A recipe, the name of a shipped one, or a file; left out, the demo on built-in data.
        work: Directory for everything.
        overrides: Keys of the recipe as `--set` takes them, such as `pretrain.batch_size=4`.
        until: Last stage.
        say: Gets each line of its log.

    Returns:
        The run as `list_runs` shows it.

    Raises:
        AnadilError: The run failed; class and message are those of its exit.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.run(until="tokenizer", work="demo").artifacts["tokenizer"]  # doctest: +SKIP
    """
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        say(line)

    with _recipe_file(recipe) as name:
        command = [sys.executable, "-m", "anadil", "run", name, "--work", str(work), "--until", until]
        command += [word for each in overrides for word in ("--set", each)]
        number, code = _follow(command, hear)
    if code == errors.INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        why = next((line.partition(ERROR)[2] for line in lines if ERROR in line), f"exit code {code}")
        raise ERRORS.get(code, AnadilError)(why)
    result = next((each for each in list_runs(work, limit=10) if each.id.endswith(f"-{number}")), None)
    if result is None:
        raise DataError(f"{work}: the run left no record there; check whether the disk is full")
    return result


def _follow(command: list[str], say: Callable[[str], object]) -> tuple[int, int]:
    """Process id and exit code of a command whose stderr is passed on; after an interrupt it may save first."""
    # A process group of its own: a notebook interrupts the kernel's whole group, and a second signal would end
    # the run before it has saved.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        encoding="utf-8", errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while True:
            try:
                for line in process.stderr:
                    say(line.rstrip("\n"))
                return process.pid, process.wait()
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGINT)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                raise


@contextmanager
def _recipe_file(recipe: Recipe | str) -> Iterator[str]:
    """Name of a recipe for the command line."""
    if isinstance(recipe, str):
        yield recipe
        return
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder) / "notebook.json"
        path.write_text(recipe.model_dump_json(), encoding="utf-8")
        yield str(path)
