"""The comparison of two runs: recipes, artifacts and the comparisons of stages.

Only small files are read, each verified against its manifest; no weights are fetched.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, read_table, root_of
from anadil.artifacts.uri import MANIFEST, absolute, join
from anadil.core.candidates import BY_KIND
from anadil.core.errors import DataError
from anadil.core.format import DASH, human_figure, human_percent, one_line
from anadil.core.log import masked
from anadil.core.stages import FLOW, brought
from anadil.core.table import Table
from anadil.page.compared import ComparedRun, ScorePair
from anadil.page.values import Json
from anadil.release.runs import WORK, Run, find_run, list_runs
from anadil.report.verdict import gate_verdict
from anadil.runtime.job import kind_of
from anadil.runtime.run_record import recipe_of

WORDS = tuple(stage.writes for stage in FLOW)
# Files whose address people copy, for the artifact that holds them.
SHOWN_FILES = ("/report.html", "/scores.json", "/manifest.json")
NAMED = ("report", "scores", *reversed(BY_KIND))
"""Artifacts that stand for the run that made them."""
WIDTH = 110
MAX_VALUE = 60
COLUMNS = ("candidate", "figure", "A", "B", "B - A", "95 % interval", "over", "better")
PLACES = ("storage.", "tracking.", "cluster.", "report.")
"""Sections of a recipe that decide no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(ComparedRun):
    """Facts of one run."""

    name: str
    run: Run | None
    """The listed run; None if an artifact names it."""
    uris: dict[str, str]

    @property
    def label(self) -> str:
        """Name for people: recipe and id, or the artifact."""
        if self.run:
            return f"{self.run.recipe} {self.run.id}".strip()
        word = next(iter(self.uris), "")
        return f"{word}/{self.manifests[word].key}" if word else self.name


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


def find_facts(name: str, work: str | Path | None, root: str | None = None) -> RunFacts:
    """Facts of a run: `compare` lists its possible names."""
    place = next((name.removesuffix(file) for file in SHOWN_FILES if name.endswith(file)), name)
    if "://" not in place and not Path(place).exists():
        run = find_run(name, work, root)
        return _facts(name, run, _artifacts_of(run))
    place = absolute(place)
    if manifest := artifact.read_manifest(place):
        return _facts(name, None, _neighbours(place, manifest))
    if latest := next((each for each in list_runs(place) if each.artifacts), None):
        return _facts(name, latest, _artifacts_of(latest))
    # A root that keeps no runs stands for its newest scores.
    scores = storage.store(place).directories(join(place, "scores"))
    manifest = artifact.read_manifest(scores[-1]) if scores else None
    if manifest is None:
        raise DataError(
            f"{name}: neither an artifact nor a work directory with a run that made something; "
            "`anadil list` shows the runs"
        )
    return _facts(name, None, _neighbours(scores[-1], manifest))


def _artifacts_of(run: Run) -> dict[str, str]:
    """Artifact word -> URI, also if the run's directory was moved or copied since."""
    uris = {}
    for word, uri in run.artifacts.items():
        beside = join(run.place, *uri.rstrip("/").split("/")[-2:])
        is_gone = "://" not in uri and not (Path(uri) / MANIFEST).is_file()
        uris[word] = beside if is_gone and (Path(beside) / MANIFEST).is_file() else uri
    return uris


def _neighbours(uri: str, manifest: Manifest) -> dict[str, str]:
    """The artifacts of the run that made one: its inputs, and the scores that are of it."""
    kind, origin = manifest.kind, manifest.origin
    if kind not in NAMED:
        raise DataError(f"{uri}: a {kind} is a part of many runs; give a {', '.join(NAMED)} or a run")
    roots, uris, queue = [root_of(uri)], {kind: uri}, [manifest]
    if kind in BY_KIND:
        # Several scores may speak of it: those count that speak of its inputs as well.
        inputs = {f"input {kind}": manifest.digest}
        inputs |= {name: origin[name] for each in BY_KIND if (name := f"input {each}") in origin}
        below = artifacts_below(roots, "scores")
        scores = next((each for each in below if inputs.items() <= each[1].origin.items()), None)
        if scores:
            uris["scores"] = scores[0]
            queue.append(scores[1])
    while queue:
        each = queue.pop()
        for word in (word for word in _inputs(each) if word not in uris):
            for place, made in artifacts_below(roots, kind_of(word)):
                if each.inputs[word] in (made.digest, made.whole_digest):
                    uris[word] = place
                    queue.append(made)
                    break
    return uris


def _facts(name: str, run: Run | None, uris: Mapping[str, str]) -> RunFacts:
    manifests = {word: each for word, uri in uris.items() if (each := artifact.read_manifest(uri))}
    if not manifests:
        state = f": {run.state}{f', {run.message}' if run.message else ''}" if run else ""
        raise DataError(
            f"{name}: none of its artifacts exists{state}; run it, or name another by `anadil list`"
        )
    latest = next(manifests[word] for word in reversed(WORDS) if word in manifests)
    digests = {word: each.digest for word, each in manifests.items()}
    for word in reversed(WORDS):
        # A report's inputs are whole digests.
        if word in manifests and word != "report":
            digests = {each: manifests[word].inputs[each] for each in _inputs(manifests[word])} | digests

    compared = {stage.writes: brought(stage, "compare").FILE for stage in FLOW if "compare" in stage.brings}
    tables = {
        word: read_table(uris[word], manifests[word], file)
        for word, file in compared.items()
        if word in manifests
    }
    recipe = recipe_of(run.place, run.id) if run else {}
    return RunFacts(
        name=name, run=run, uris={word: uris[word] for word in manifests}, manifests=manifests, digests=digests,
        recipe=flat(recipe or latest.recipe), tables=tables,
    )  # fmt: skip


def _inputs(manifest: Manifest) -> list[str]:
    """Words of the artifacts of stages that another was made of, in the order of the flow."""
    words = [word for word in manifest.inputs if kind_of(word) in WORDS]
    return sorted(words, key=lambda word: WORDS.index(kind_of(word)))


def flat(recipe: Mapping[str, object]) -> dict[str, object]:
    """Every key of a resolved recipe by its path."""
    keys: dict[str, object] = {}

    def walk(node: Mapping[str, object], path: str) -> None:
        for key, value in node.items():
            if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                # Places are keys, as `--set` has them.
                walk({str(place): each for place, each in enumerate(value)}, f"{path}{key}.")
            elif isinstance(value, dict) and value:
                walk(value, f"{path}{key}.")
            else:
                keys[f"{path}{key}"] = value

    walk(recipe, "")
    return keys
