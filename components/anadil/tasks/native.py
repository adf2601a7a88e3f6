"""Tasks by language, of benchmarks that many languages have. `scripts/make_native_tasks.py` writes the table.

It imports nothing of the harness, so that they can be listed and planned on any machine.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anadil.recipe.sections import Recipe
from anadil.text.language import find_language, is_pack_path, load_language
from anadil.text.parallel import is_pair, languages_of

TABLE = Path(__file__).parent / "shipped/native.tsv"
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


BENCHMARKS = {
    "belebele": Benchmark(
        name="Belebele", measures="reading comprehension, translated by people", chance=0.25, items=900
    ),
    "include": Benchmark(name="INCLUDE", measures="knowledge, from exams in the language", chance=0.25),
    "global_piqa_nonparallel": Benchmark(
        name="Global PIQA", measures="everyday physical sense, written in the language", chance=0.5
    ),
    "global_piqa_parallel": Benchmark(
        name="Global PIQA, parallel", measures="everyday physical sense, translated", chance=0.5
    ),
    "multiblimp": Benchmark(name="MultiBLiMP", measures="agreement of subject and verb, minimal pairs", chance=0.5),
    "turblimp": Benchmark(
        name="TurBLiMP", measures="16 phenomena of Turkish grammar, minimal pairs", chance=0.5, items=16_000
    ),
    "xcopa": Benchmark(name="XCOPA", measures="cause and effect, translated by people", chance=0.5, items=500),
    "xstorycloze": Benchmark(
        name="XStoryCloze", measures="the right end of a story, translated by people", chance=0.5, items=1_511
    ),
    "tumlu": Benchmark(name="TUMLU-mini", measures="school questions, from the language", chance=0.25),
    "az_eval": Benchmark(
        name="AZ-Eval", measures="short answers, written, with the same questions in English", chance=None
    ),
    "flores": Benchmark(
        name="FLORES-200", measures="translation from or into English", chance=None, items=1_012,
        why_not="its data comes as a script, which datasets 5 does not run",
    ),
}  # fmt: skip
"""In the order of the lists. Sizes and chance are the figures of their authors."""


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
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        language, benchmark, task = line.split("\t")
        by_language.setdefault(language, []).append(NativeTask(task=task, benchmark=BENCHMARKS[benchmark]))
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
    return list(dict.fromkeys(_expanded(recipe.evaluate.listed_tasks, recipe.language)))


def _expanded(names: Iterable[str], language: str) -> Iterable[str]:
    for name in names:
        if name == AUTO:
            yield from (each.task for each in native_tasks(language) if not each.benchmark.why_not)
        else:
            yield name
