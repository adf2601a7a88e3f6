"""Weeks of a model without a stage that computes: artifacts with the origins of real runs, and a registry of one name."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact, storage
from anadil.core.errors import RecipeError
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release.registry.client import RegisteredModel
from anadil.retrain import lineage
from anadil.retrain.lineage import ReleasedModel
from anadil.runtime.flow import flow_of, recipe_of_step
from anadil.runtime.lookup import kept_artifact
from anadil.runtime.planned_artifact import PlannedArtifact, planned_artifact

NAME = "anadil-az"
DOCUMENTS = 40
"""Documents that each file of text counts as."""
SECTIONS: dict[str, Any] = {
    "base": {"model": "tiny"},
    "tracking": {"uri": "sqlite:////nowhere/mlflow.db"},
    "pretrain": {"phases": [{"trains": "all", "steps": 8, "lr": 0.001}], "sequence_length": 64},
}


def recipe_of(root: Path, **sections: Any) -> Recipe:
    """Return a recipe whose artifacts lie below a folder; without sections it reads all files of `text/`."""
    given = SECTIONS | {"storage": {"root": str(root / "store")}} | sections
    if "sources" not in given:
        given = {"clean": {"inputs": [f"{root}/text/*.jsonl"]}} | given
    return parse_recipe(json.dumps(given), "recipe")


def two_sources(root: Path, **sections: Any) -> Recipe:
    """Return a recipe of Azerbaijani text of `az/` and English of `en/`."""
    phases = [{"trains": "all", "steps": 8, "lr": 0.001, "mix": {"web": 0.9, "en": 0.1}}]
    sources = {
        "web": {"inputs": [f"{root}/az/*.jsonl"]},
        "en": {"inputs": [f"{root}/en/*.jsonl"], "language": "en"},
    }
    given = {"sources": sources, "pretrain": SECTIONS["pretrain"] | {"phases": phases}} | sections
    return recipe_of(root, **given)


def add_text(folder: Path, name: str, text: str = "") -> str:
    """Write a file of text; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({"text": text or name}) + "\n", encoding="utf-8")
    return str(path)


def make_week(
    recipe: Recipe, *, points: list[dict[str, object]] | None = None, until: str = "pretrain"
) -> dict[str, str]:
    """Make the artifacts of a run up to a stage, as its stages would name them; return their URIs by word."""
    uris: dict[str, str] = {}
    phases = [each.model_dump(mode="json") for each in recipe.pretrain.phases]
    training = {"phases": phases, "branch_points": points or [], "tokens_per_s": 1_000.0}
    for step in flow_of(recipe, until):
        if step.stage.name == "admit":
            continue
        # Training from weights or from the base gives models of equal use here.
        plain = recipe.model_copy(
            update={"pretrain": recipe.pretrain.model_copy(update={"start_from": None})}
        )
        part, _ = recipe_of_step(step.stage, plain, step.source)
        inputs = {word: uris[of_run] for word, of_run in step.reads_in_run(recipe).items() if of_run in uris}
        if kept := kept_artifact(step.stage, part, None):
            uris[step.writes] = kept.uri
            continue
        planned = planned_artifact(step.stage, part, inputs, (), None)
        if artifact.read_manifest(planned.target) is None:
            _make(planned, part, training)
        uris[step.writes] = planned.target
    return uris


def _make(planned: PlannedArtifact, recipe: Recipe, training: dict[str, Any]) -> None:
    folder, kind = planned.partial, planned.stage.writes
    folder.mkdir(parents=True)
    (folder / "content").write_text(json.dumps(planned.origin, sort_keys=True))
    tables = {"training.json": training} if kind == "model" else _counts(kind, planned)
    for name, content in tables.items():
        (folder / name).write_text(json.dumps(content))
    artifact.seal(
        folder, kind=kind, origin=planned.origin, recipe=recipe.model_dump(mode="json"),
        records={"train": DOCUMENTS * len(planned.files)}, figures={"seconds": 36.0},
    )  # fmt: skip
    storage.store(planned.target).put_directory(folder, planned.target)


def _counts(kind: str, planned: PlannedArtifact) -> dict[str, object]:
    """Return the tables of an artifact by file: of each file of text, all bytes stay, and a document has a sequence."""
    if kind == "corpus":
        return {"stats.json": {"bytes_in": sum(storage.sizes(planned.files, "files").values())}}
    if kind == "tokens":
        documents = planned.manifests["corpus"].records["train"]
        counts = {"tokens": 64, "targets": 64, "bytes": 256, "documents": 1, "sequences": 1}
        return {"tokens.json": {name: each * documents for name, each in counts.items()}}
    return {}


def released(uri: str, version: str = "1") -> ReleasedModel:
    """Return a model as the champion."""
    manifest = artifact.read_manifest(uri)
    assert manifest is not None
    return ReleasedModel(name=NAME, version=version, uri=uri, manifest=manifest)


def make_checkpoint(folder: Path) -> str:
    """Make the manifest of a checkpoint; return its place."""
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    artifact.seal(folder, kind="checkpoint", origin={})
    return str(folder)


class Registry:
    """A registry at an address whose aliases a test sets."""

    uri = "sqlite:////nowhere/mlflow.db"

    def __init__(self) -> None:
        self.aliases: dict[str, RegisteredModel] = {}

    def by_alias(self, name: str, alias: str) -> RegisteredModel | None:
        """Return the version of an alias."""
        return self.aliases.get(f"{name}@{alias}")

    def known(self, name: str) -> str:
        """List what exists."""
        return f"{name} has no alias yet" if self.aliases else "it is empty; run anadil promote"

    def set_champion(self, uri: str, version: str = "1", digest: str = "") -> None:
        """Make a model the champion."""
        manifest = artifact.read_manifest(uri)
        digest = digest or (manifest.digest if manifest else "0" * 64)
        kind = manifest.kind if manifest else "model"
        model = RegisteredModel(name=NAME, version=version, uri=uri, digest=digest, kind=kind)
        self.aliases[f"{NAME}@champion"] = model


def use_registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Return an empty registry, which every address leads to."""
    made = Registry()

    def open_made(tracking: str | None, *, makes: bool) -> Registry:
        assert not makes
        if not tracking:
            raise RecipeError("no registry")
        return made

    monkeypatch.setattr(lineage, "open_registry", open_made)
    monkeypatch.setattr(lineage, "registry_errors", lambda _: nullcontext())
    return made
