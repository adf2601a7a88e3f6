"""Checks before `tasks` starts: task files that know the recipe's names."""

import ast
import importlib.util
import re
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from anadil.core.errors import PreflightError
from anadil.core.format import counted
from anadil.core.imports import required_imports
from anadil.recipe.sections import Recipe
from anadil.runtime import check
from anadil.runtime.job import is_place
from anadil.tasks.native import AUTO, FOLDER, KEY, named_tasks, native_tasks
from anadil.tasks.stage import STAGE

NAMES = re.compile(
    r"""^\s*(-\s*(?:task\s*:\s*)?|(?:task|group|tag)\s*:\s*)["']?([^\s"'#]+)["']?\s*(?:#.*)?$""", re.MULTILINE
)
FUNCTIONS = re.compile(r"!function\s+([\w.]+)\.\w+")
INCLUDES = re.compile(r"""^include\s*:\s*["']?([^\s"'#]+)""", re.MULTILINE)
IMAGE_MODULES = frozenset((
    "absl", "datasets", "evaluate", "httpx", "huggingface_hub", "jinja2", "nltk", "numpy", "packaging", "pandas",
    "psutil", "pytablewriter", "regex", "requests", "rouge_score", "sacrebleu", "scipy", "sklearn", "sympy", "torch", "tqdm",
    "transformers", "typing_extensions", "word2number", "yaml",
))  # fmt: skip
"""Those of the harness's tasks that the image of `tasks` holds. A test compares them with its lock."""


def _tasks(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    if planned.recipe.evaluate.tasks and STAGE.name in planned.names:
        yield inspect_tasks(planned.recipe, planned.by)


def inspect_tasks(recipe: Recipe, by: str = check.RECIPE) -> check.CheckResult:
    """Look the names up in the task files of lm-evaluation-harness, and packages of their code; places are not checked."""
    kind = next(each for each in STAGE.side_files if each.key == KEY)
    named = [name for name in named_tasks(recipe) if not is_place(name, kind)]
    files = TaskFiles([FOLDER])
    if set(named) - files.own.keys():
        files = TaskFiles([FOLDER, *_harness()])
    missing = [name for name in named if name not in files.own]
    if missing and not _harness():
        return check.not_installed(KEY, "lm_eval", f"{', '.join(missing)} not looked up")
    here = by in (check.DOCTOR, check.RUN)
    who, remedy = (
        ("this machine", "install it") if here else ("the image of tasks", "install it and use anadil run")
    )
    for name in named:
        lacks = files.modules(name) - (set() if here else IMAGE_MODULES)
        if here or by == check.RECIPE:
            lacks = {each for each in lacks if not importlib.util.find_spec(each)}
        if lacks:
            raise PreflightError(
                f"{KEY}: {name} needs {', '.join(sorted(lacks))}, which {who} does not hold; take {name} out, or {remedy}"
            )
    if missing and any(is_place(name, kind) for name in recipe.evaluate.listed_tasks):
        return check.skipped(KEY, f"{', '.join(missing)}: only a task file of the recipe may hold it")
    if missing:
        from anadil.tasks.harness import task_manager

        with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
            task_manager(missing, Path(folder))
    if AUTO in recipe.evaluate.listed_tasks and not native_tasks(recipe.language):
        return check.passed(KEY, f"auto: no benchmark has tasks in {recipe.language} (`anadil tasks list`)")
    return check.passed(KEY, f"{counted(len(named), 'name')} of tasks found")


class TaskFiles:
    """Task files below some folders, read as text: making tasks of all 14,000 takes three times as long."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.own: dict[str, list[Path]] = defaultdict(list)
        """Task, group or tag -> the files that define it."""
        self._members: dict[Path, list[str]] = {}
        for file in (file for folder in folders for file in folder.rglob("*.y*ml") if file.is_file()):
            names = NAMES.findall(file.read_text(encoding="utf-8", errors="replace"))
            groups = [name for key, name in names if key.startswith("group")]
            self._members[file] = [name for _, name in names if groups]
            for name in groups or (name for _, name in names):
                self.own[name].append(file)

    def modules(self, name: str) -> set[str]:
        """Return the modules of others that the code of a task, or of the members of a group or a tag, imports."""
        result, names, seen = set[str](), [name], set[Path]()
        for each in names:
            for file in set(self.own.get(each, ())) - seen:
                seen.add(file)
                names += self._members[file]
                result.update(*(imported(path, seen) for path in _code(file)))
        return result


def _code(file: Path) -> Iterator[Path]:
    """Yield the Python files that a task file, or one that it includes, names."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    for name in FUNCTIONS.findall(text):
        yield file.parent / f"{name.replace('.', '/')}.py"
    for name in INCLUDES.findall(text):
        yield from _code(file.parent / name)


def imported(file: Path, seen: set[Path]) -> set[str]:
    """Return the modules of others that a file and those beside it import, but for those that it can do without."""
    if file in seen or not file.is_file():
        return set()
    seen.add(file)
    with warnings.catch_warnings(action="ignore"):  # of the harness's own escapes
        result, tree = set[str](), ast.parse(file.read_text(encoding="utf-8"))
    for node in required_imports(tree):
        level, module = getattr(node, "level", 0), getattr(node, "module", None)
        names = [".".join(filter(None, (module, each.name))) for each in node.names] + [module or ""]
        root = file.parents[max(level - 1, 0)]
        if names[0].startswith("lm_eval.tasks."):
            root = next(folder for folder in file.parents if folder.name == "lm_eval").parent
        paths = [path for name in names if (path := root / f"{name.replace('.', '/')}.py").is_file()]
        result.update(*(imported(path, seen) for path in paths))
        if not paths and not level:
            result |= {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"", "lm_eval"}
    return result


def _harness() -> list[Path]:
    """Return the harness's folder of tasks without an import, which takes seconds."""
    result = importlib.util.find_spec("lm_eval")
    return [Path(place) / "tasks" for place in (result.submodule_search_locations or ())] if result else []


CHECKS = (check.Check(name=KEY, by=check.EVERYWHERE, function=_tasks),)
