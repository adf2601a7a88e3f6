"""Check that the tasks of a recipe exist, before pre-training."""

import importlib.util
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.preflight.check import CheckResult, passed, skipped
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_place

KEY = "evaluate.tasks"
SHIPPED = Path(__file__).parents[1] / "tasks/shipped"


def inspect_tasks(recipe: Recipe) -> CheckResult:
    """Look the names up in the task files of lm-evaluation-harness; places are not checked.

    Raises:
        RecipeError: A name is not known, with the nearest ones.
    """
    kind = next(each for each in STAGES["tasks"].side_files if each.key == KEY)
    named = [name for name in recipe.evaluate.tasks if not is_place(name, kind)]
    missing = named_nowhere(named, [SHIPPED, *_harness()])
    if not missing:
        return passed(KEY, f"{counted(len(named), 'name')} of tasks found")
    if not _harness():
        return skipped(KEY, f"{', '.join(missing)} not looked up, because lm_eval is not installed here")
    if len(named) < len(recipe.evaluate.tasks):
        return skipped(KEY, f"{', '.join(missing)}: only a task file of the recipe may hold it")
    from anadil.tasks.harness import task_manager

    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        task_manager(missing, Path(folder))
    return passed(KEY, f"{counted(len(named), 'name')} of tasks found")


def named_nowhere(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return the names that no task file below the folders has as its task, group or tag."""
    # As text: making tasks of all 14,000 files takes three times as long.
    missing = dict.fromkeys(names)
    for file in (file for folder in folders for file in folder.rglob("*.y*ml") if file.is_file()):
        if not missing:
            break
        words = "|".join(map(re.escape, missing))
        line = rf"""^\s*(?:-\s*|(?:task|group|tag)\s*:\s*)["']?({words})["']?\s*(?:#.*)?$"""
        for name in re.findall(line, file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
            missing.pop(name, None)
    return list(missing)


def _harness() -> list[Path]:
    """Return the harness's folder of tasks without an import, which takes seconds."""
    result = importlib.util.find_spec("lm_eval")
    return [Path(place) / "tasks" for place in (result.submodule_search_locations or ())] if result else []
