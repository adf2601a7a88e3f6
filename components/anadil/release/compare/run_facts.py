"""Facts of a run to compare: recipe, artifacts and scores, by any name of the run.

Only small files are read, each verified against its manifest; no weights are fetched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, read_table, root_of
from anadil.artifacts.uri import MANIFEST, absolute, join
from anadil.core.candidates import BY_KIND
from anadil.core.errors import DataError
from anadil.core.stages import FLOW, brought
from anadil.page.compared import ComparedRun
from anadil.release.runs import Run, find_run, list_runs
from anadil.runtime.job import kind_of
from anadil.runtime.run_record import recipe_of

WORDS = tuple(stage.writes for stage in FLOW)
# Files whose address people copy, for the artifact that holds them.
SHOWN_FILES = ("/report.html", "/scores.json", "/manifest.json")
NAMED = ("report", "scores", *reversed(BY_KIND))
"""Artifacts that stand for the run that made them."""


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
