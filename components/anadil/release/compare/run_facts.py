"""A run to be compared: its recipe, artifacts, scores and curves, from whatever names it.

Only small files are read, each checked against its manifest; no weights are fetched.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, read_table, read_verified, root_of
from anadil.artifacts.uri import absolute, join
from anadil.core.errors import DataError
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.release.runs import Run, find_run, list_runs, moved
from anadil.report.read import Json, list_of, table_of
from anadil.runtime.cache_key import recipe_keys
from anadil.runtime.run_record import recipe_of

WORDS = tuple(stage.writes for stage in FLOW)
SHOWN_FILES = ("/report.html", "/scores.json", "/manifest.json")
"""Files whose address people copy: the artifact is where they lie."""
NAMED = ("report", "scores", "adapter", "model")
"""Artifacts that stand for the run that made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts of one run."""

    name: str
    """As the user named it."""
    run: Run | None
    """As a list shows it; None of a run that is named by an artifact."""
    uris: dict[str, str]
    """Artifact word -> where it lies."""
    manifests: dict[str, Manifest]
    digests: dict[str, str]
    """Artifact word -> digest of its content, also of those that only a later one speaks of."""
    recipe: dict[str, object]
    """Every key by its path, such as `pretrain.batch_size`."""
    scores: Json
    training: list[Json]
    training_summary: Json
    finetuning: list[Json]
    finetuning_summary: Json

    @property
    def label(self) -> str:
        """Name for people: recipe and id, or the artifact."""
        if self.run:
            return f"{self.run.recipe} {self.run.id}".strip()
        word = next(iter(self.uris), "")
        return f"{word}/{self.manifests[word].key}" if word else self.name

    @property
    def language(self) -> str:
        """Values of the recipe; empty if no recipe was kept."""
        return str(self.recipe.get("language") or "")


def find_facts(name: str, work: str | Path | None, root: str | None = None) -> RunFacts:
    """Facts of a run.

    Args:
        name: A work directory (its latest run), the URI of a report, scores, adapter or model, or a run's id.
        work: Work directory whose runs have ids.
        root: Store whose runs have ids.

    Raises:
        DataError: There is no such run, or nothing of it is there.
        IntegrityError: A file of it is not what its manifest says.
        RecipeError: The name begins several ids.
    """
    place = next((name.removesuffix(file) for file in SHOWN_FILES if name.endswith(file)), name)
    if "://" in place or Path(place).exists():
        place = absolute(place)
        if manifest := artifact.read_manifest(place):
            return _facts(name, None, _neighbours(place, manifest))
        run = next((each for each in list_runs(place) if each.artifacts), None)
        uris = _of_run(run) if run else _latest_scores(place)
        if not uris:
            raise DataError(
                f"{name}: neither an artifact nor a work directory with a run that made something; "
                "`anadil list` shows the runs"
            )
        return _facts(name, run, uris)
    run = find_run(name, work, root)
    return _facts(name, run, _of_run(run))


def _of_run(run: Run) -> dict[str, str]:
    return {word: moved(uri, run.place) for word, uri in run.artifacts.items()}


def _latest_scores(place: str) -> dict[str, str]:
    """The artifacts of the newest scores below a root that keeps no runs."""
    found = storage.store(place).directories(join(place, "scores"))
    manifest = artifact.read_manifest(found[-1]) if found else None
    return _neighbours(found[-1], manifest) if manifest else {}


def _neighbours(uri: str, manifest: Manifest) -> dict[str, str]:
    """The artifacts of the run that made one: those that it was made from, and the scores that are of it.

    Raises:
        DataError: It is an artifact that stands for no run.
    """
    if manifest.kind not in NAMED:
        raise DataError(
            f"{uri}: a {manifest.kind} is a part of many runs; give a {', '.join(NAMED)} or a run"
        )
    roots = [root_of(uri)]
    found = {manifest.kind: uri}
    wanted = [manifest]
    if manifest.kind in ("adapter", "model"):
        for scores, of in artifacts_below(roots, "scores"):
            same = {"model": manifest.origin.get("input model")} if manifest.kind == "adapter" else {}
            wants = {
                word: digest for word, digest in (same | {manifest.kind: manifest.digest}).items() if digest
            }
            if all(of.origin.get(f"input {word}") == digest for word, digest in wants.items()):
                found["scores"] = scores
                wanted.append(of)
                break
    while wanted:
        origin = wanted.pop().origin
        for word in (word for word in WORDS if f"input {word}" in origin and word not in found):
            for place, each in artifacts_below(roots, word):
                if origin[f"input {word}"] in (each.digest, each.whole_digest):
                    found[word] = place
                    wanted.append(each)
                    break
    return found


def _facts(name: str, run: Run | None, uris: Mapping[str, str]) -> RunFacts:
    manifests = {word: each for word, uri in uris.items() if (each := artifact.read_manifest(uri))}
    uris = {word: uris[word] for word in manifests}
    if not manifests:
        told = f": {run.state}{f', {run.message}' if run.message else ''}" if run else ""
        raise DataError(
            f"{name}: none of its artifacts exists{told}; run it, or name another by `anadil list`"
        )
    latest = next(manifests[word] for word in reversed(WORDS) if word in manifests)
    kept = recipe_of(run.place, run.id) if run else {}
    digests = {word: each.digest for word, each in manifests.items()}
    for word in reversed(WORDS):
        inputs = manifests[word].origin if word in manifests and word != "report" else {}
        found = {key.removeprefix("input "): text for key, text in inputs.items() if key.startswith("input ")}
        digests = {key: text for key, text in found.items() if key in WORDS} | digests

    def lines(word: str) -> list[Json]:
        if word not in manifests or "training.jsonl" not in manifests[word].files:
            return []
        content = read_verified(uris[word], manifests[word], "training.jsonl")
        return [table_of(json.loads(line)) for line in content.split(b"\n") if line]

    def table(word: str, file: str) -> Json:
        return read_table(uris[word], manifests[word], file) if word in manifests else {}

    return RunFacts(
        name=name, run=run, uris=dict(uris), manifests=manifests, digests=digests,
        recipe=flat(kept or latest.recipe), scores=table("scores", "scores.json"),
        training=lines("model"), training_summary=table("model", "training.json"),
        finetuning=lines("adapter"), finetuning_summary=table("adapter", "training.json"),
    )  # fmt: skip


def flat(recipe: Mapping[str, object]) -> dict[str, object]:
    """Every key of a resolved recipe by its path; one that came in a later release has its default."""
    found: dict[str, object] = {}

    def walk(node: Mapping[str, object], path: str) -> None:
        for key, value in node.items():
            if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                walk(
                    {str(place): each for place, each in enumerate(value)}, f"{path}{key}."
                )  # as `--set` has it
            elif isinstance(value, dict) and value:
                walk(value, f"{path}{key}.")
            else:
                found[f"{path}{key}"] = value

    walk(recipe, "")
    defaults = recipe_keys(Recipe(), tuple(Recipe.model_fields)) if found else {}
    for path, text in defaults.items():
        if not any(name.startswith(f"{path}.") for name in found):
            found.setdefault(path, json.loads(text))
    return found


def records(value: object) -> list[Json]:
    """The tables of a list."""
    return [table_of(each) for each in list_of(value)]
