"""`anadil run` from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from anadil.core.errors import DataError
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.release.child_process import Say, recipe_file, run_command
from anadil.release.runs import WORK, Run, list_runs

NOTHING: Mapping[str, str] = MappingProxyType({})


def run(
    recipe: Recipe | str = "smoke",
    *,
    work: str | Path = WORK,
    overrides: Sequence[str] = (),
    until: str = FLOW[-1].name,
    say: Say | None = None,
) -> Run:
    """Run the pipeline on this machine and wait for its end; existing artifacts are reused.

    An interrupt (the notebook's stop button) ends it after it has saved; the same call resumes it.

    Args:
        recipe: A recipe, the name of a shipped one, or a file; left out, the demo on built-in data.
        work: Directory for everything.
        overrides: Keys of the recipe as `--set` takes them, such as `pretrain.batch_size=4`.
        until: Last stage.
        say: Gets each line of its log; left out, a notebook shows how far it is, and elsewhere lines are printed.

    Returns:
        The run as `list_runs` shows it.

    Raises:
        AnadilError: The run failed; class and message are those of its exit.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.run(until="tokenizer", work="demo").artifacts["tokenizer"]  # doctest: +SKIP
    """
    with recipe_file(recipe) as name:
        arguments = ["run", name, "--work", str(work), "--until", until]
        arguments += [word for each in overrides for word in ("--set", each)]
        ended = run_command(arguments, say, NOTHING)
    result = next((each for each in list_runs(work, limit=10) if each.id.endswith(f"-{ended.number}")), None)
    if result is None:
        raise DataError(f"{work}: the run left no record there; check whether the disk is full")
    return result
