"""The comparison of two runs: recipes, artifacts and the comparisons of stages."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anadil.core.format import DASH, human_figure, human_percent, one_line
from anadil.core.log import masked
from anadil.core.stages import FLOW, brought
from anadil.core.table import Table
from anadil.page.compared import ScorePair
from anadil.page.values import Json
from anadil.release.compare.run_facts import WORDS, RunFacts, find_facts
from anadil.release.runs import WORK
from anadil.report.verdict import gate_verdict

WIDTH = 110
MAX_VALUE = 60
COLUMNS = ("candidate", "figure", "A", "B", "B - A", "95 % interval", "over", "better")
PLACES = ("storage.", "tracking.", "cluster.", "report.")
"""Sections of a recipe that decide no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A key whose value differs."""

    key: str
    a: object
    b: object
    decides: bool
    """A stage's result depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences between two runs."""

    a: RunFacts
    b: RunFacts
    recipe: tuple[RecipeChange, ...]
    same: dict[str, bool]
    scores: tuple[ScorePair, ...]
    verdict: tuple[str, ...]
    """Sentences: which run is better, and how certain that is."""
    notes: tuple[str, ...]
    """Limits of the comparison: what cannot be compared, and why."""
    more: Mapping[str, str]
    """Further values of the JSON by their names."""

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON has them."""
        return {
            "a": _about(self.a),
            "b": _about(self.b),
            **self.more,
            "verdict": list(self.verdict),
            "notes": list(self.notes),
            "recipe": [asdict(each) for each in self.recipe],
            "same_artifacts": self.same,
            "scores": [
                asdict(each) | {"difference": each.difference, "clear": each.clear, "unsure": each.unsure, "better": each.better}
                for each in self.scores
            ],
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the lines of a terminal."""
        yield f"A: {self.a.label}"
        yield f"B: {self.b.label}"
        for text in (*self.verdict, *self.notes):
            yield from ("", *textwrap.wrap(text, WIDTH))
        if self.recipe:
            yield from ("", "Recipe")
            for each in self.recipe:
                idle = "" if each.decides else " (decides no result)"
                yield f"{each.key}{idle}: {_value(each.a)} -> {_value(each.b)}"
        else:
            both = self.a.recipe and self.b.recipe
            yield from ("", "Recipe: no key differs." if both else "Recipe: not kept by a run.")
        rows = [_cells(pair) for pair in self.scores if pair.difference != 0]
        if rows:
            yield from ("", "Scores")
            yield from Table("Scores", COLUMNS, rows, words=(1, 7)).lines()
        if same := len(self.scores) - len(rows):
            yield f"{same} further figures are the same in both."


def compare(a: str, b: str, *, work: str | Path | None = WORK, root: str | None = None) -> Comparison:
    """Compare two runs.

    Args:
        a: A work directory (its latest run), the URI of a report, scores, adapter or model, or a run's id or its beginning.
        b: The other one; differences are B minus A.
    """
    first, second = (find_facts(name, work, root) for name in (a, b))
    parts = [brought(stage, "compare").compared(first, second) for stage in FLOW if "compare" in stage.brings]
    common = [word for word in WORDS if word in first.digests and word in second.digests and word != "report"]
    return Comparison(
        a=first, b=second, recipe=_changes(first.recipe, second.recipe),
        same={word: first.digests[word] == second.digests[word] for word in common},
        scores=tuple(pair for part in parts for pair in part.scores),
        verdict=tuple(sentence for part in parts for sentence in part.verdict),
        notes=(*_notes(first, second), *(note for part in parts for note in part.notes)),
        more={name: text for part in parts for name, text in part.more.items()},
    )  # fmt: skip


def _changes(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[RecipeChange, ...]:
    """Keys that differ, those that decide a result first."""

    def shown(value: object) -> object:
        """A value without what only its owner may read."""
        text = json.dumps(value, ensure_ascii=False)
        return value if (safe := masked(text)) == text else json.loads(safe)

    changes = [
        RecipeChange(key=key, a=shown(a.get(key)), b=shown(b.get(key)), decides=not key.startswith(PLACES))
        for key in dict.fromkeys([*a, *b])
        if a and b and a.get(key) != b.get(key)
    ]
    return tuple(sorted(changes, key=lambda each: not each.decides))


def _notes(a: RunFacts, b: RunFacts) -> Iterator[str]:
    runs = (("A", a), ("B", b))
    scores = [(name, table) for name, run in runs if (table := run.tables.get("scores"))]
    yield from (f"{name}: {gate_verdict(table)}" for name, table in scores)
    for name, run in runs:
        why = f"; it is {run.run.state}" if run.run and run.run.state != "finished" else ""
        if lacks := [word for word in ("model", "scores") if word not in run.manifests]:
            yield f"{name} has no {' and no '.join(lacks)} here{why}."


def _about(run: RunFacts) -> Json:
    listed = run.run.to_dict() if run.run else None
    artifacts = {word: {"uri": run.uris.get(word), "sha256": digest} for word, digest in run.digests.items()}
    return {"name": run.name, "label": run.label, "run": listed, "artifacts": artifacts}


def _value(value: object) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_VALUE)


def _cells(pair: ScorePair) -> tuple[str, ...]:
    """Cells under `COLUMNS`; the interval is that of the difference, or without one that of each run."""
    say = human_percent if pair.share else human_figure
    difference, interval, better = DASH, "", ""
    if pair.difference is not None:
        sign = "+" if pair.difference > 0 else ""
        difference = (
            f"{pair.difference * 100:+.3g} points" if pair.share else f"{sign}{human_figure(pair.difference)}"
        )
        better = "same" if pair.difference == 0 else "not clear"
    if pair.why_not:
        better = f"not comparable: {pair.why_not}"
    elif pair.low is not None and pair.high is not None:
        interval = "0" if pair.low == pair.high == 0 else f"{pair.low:+.4f} to {pair.high:+.4f}"
    elif pair.a_interval and pair.b_interval:
        a, b = (" to ".join(map(say, ends)) for ends in (pair.a_interval, pair.b_interval))
        interval = f"A {a}, B {b}"
    if pair.better:
        better = f"{pair.better.upper()}{', unsure' if pair.unsure else ''}"
    num = "" if pair.num_documents is None else human_figure(pair.num_documents)
    return (pair.candidate, pair.name, say(pair.a), say(pair.b), difference, interval, num, better)
