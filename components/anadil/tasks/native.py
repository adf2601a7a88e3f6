"""Tasks by language, of benchmarks that many languages have. `scripts/make_native_tasks.py` writes the table.

It imports nothing of the harness, so that they can be listed and planned on any machine.
"""

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anadil.recipe.sections import Recipe
from anadil.text.language import find_language, is_pack_path, load_language
from anadil.text.parallel import is_pair, languages_of

KEY = "evaluate.tasks"
FOLDER = Path(__file__).parent / "shipped"
"""Task files of our own."""
TABLE = FOLDER / "native.tsv"
AUTO = "auto"
"""Value of `evaluate.tasks` that stands for the tasks of the recipe's language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark that has a task for each of its languages."""

    name: str
    measures: str
    chance: float | None
    """Accuracy of guessing. None for written answers."""
    items: int | None = None
    """Questions of a language. None where languages differ."""
    why_not: str = ""
    """Reason why `auto` does not take it. Empty where it does."""


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Benchmarks by id, in the order of the lists. Sizes and chance are the figures of their authors."""
    return {
        row["id"]: Benchmark(
            name=row["name"], measures=row["measures"], why_not=row["why_not"] or "",
            chance=float(row["chance"]) if row["chance"] else None, items=int(row["items"]) if row["items"] else None,
        )
        for row in _rows(FOLDER / "benchmarks.tsv")
    }  # fmt: skip


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTask:
    """A task of one language."""

    task: str
    """Name of a task or a group of lm-evaluation-harness."""
    benchmark: Benchmark

    @property
    def row(self) -> dict[str, Any]:
        """The task with the facts of its benchmark."""
        facts = asdict(self.benchmark)
        return {
            "task": self.task,
            "benchmark": facts.pop("name"),
            "auto": not self.benchmark.why_not,
            **facts,
        }


@cache
def _by_language() -> dict[str, tuple[NativeTask, ...]]:
    by_language: dict[str, list[NativeTask]] = {}
    for row in _rows(TABLE):
        task = NativeTask(task=row["task"], benchmark=benchmarks()[row["benchmark"]])
        by_language.setdefault(row["language"], []).append(task)
    return {language: tuple(tasks) for language, tasks in by_language.items()}


def languages() -> tuple[str, ...]:
    """Ids of the languages that have a task which `auto` takes."""
    return tuple(
        code for code, tasks in _by_language().items() if any(not each.benchmark.why_not for each in tasks)
    )


def native_tasks(language: str) -> tuple[NativeTask, ...]:
    """Tasks of a language: an id, the path of a pack, or a pair, which has the tasks of both."""
    codes = map(_code, languages_of(language) if is_pair(language) else [language])
    return tuple(task for code in codes for task in _by_language().get(code, ()))


def _code(language: str) -> str:
    # No pack is needed to list tasks, so an id is enough.
    row = None if is_pack_path(language) else find_language(language)
    return row.code if row else load_language(language).code


def benchmark_of(task: str) -> Benchmark | None:
    """Return the benchmark of a task, or None if the table lacks the task."""
    return next(
        (each.benchmark for tasks in _by_language().values() for each in tasks if each.task == task), None
    )


def named_tasks(recipe: Recipe) -> list[str]:
    """Entries of `evaluate.tasks`, `auto` replaced by the tasks of the language."""
    names = recipe.evaluate.listed_tasks
    native = native_tasks(recipe.language) if AUTO in names else ()
    tasks = [each.task for each in native if not each.benchmark.why_not]
    return list(dict.fromkeys(task for name in names for task in (tasks if name == AUTO else [name])))
