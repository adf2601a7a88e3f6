"""Checks before `tasks` starts: task files that know the recipe's names."""

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from anadil.core.format import counted
from anadil.recipe.sections import Recipe
from anadil.runtime import check
from anadil.runtime.job import is_place
from anadil.tasks.stage import STAGE

KEY = "evaluate.tasks"
SHIPPED = Path(__file__).parent / "shipped"


def _tasks(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    if planned.recipe.evaluate.tasks and STAGE.name in planned.names:
        yield inspect_tasks(planned.recipe)


def inspect_tasks(recipe: Recipe) -> check.CheckResult:
    """Look the names up in the task files of lm-evaluation-harness; places are not checked."""
    kind = next(each for each in STAGE.side_files if each.key == KEY)
    named = [name for name in recipe.evaluate.tasks if not is_place(name, kind)]
    missing = named_nowhere(named, [SHIPPED, *_harness()])
    if missing and not _harness():
        detail = f"{', '.join(missing)} not looked up, because lm_eval is not installed here"
        return check.skipped(KEY, detail)
    if missing and len(named) < len(recipe.evaluate.tasks):
        return check.skipped(KEY, f"{', '.join(missing)}: only a task file of the recipe may hold it")
    if missing:
        from anadil.tasks.harness import task_manager

        with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
            task_manager(missing, Path(folder))
    return check.passed(KEY, f"{counted(len(named), 'name')} of tasks found")


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


CHECKS = (
    check.Check(
        name=KEY,
        by=(check.DOCTOR, check.CLUSTER_DOCTOR, check.RUN, check.SUBMIT, check.RECIPE),
        function=_tasks,
    ),
)
