"""Finished model that a training begins with: its weights alone, with new moments and the recipe's own phases.

`pretrain.start_from` names such an artifact, or a checkpoint of another run. This module loads no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table
from anadil.artifacts.prefetch import copy_to_cache
from anadil.core.errors import RecipeError
from anadil.plan.retraining import trajectory
from anadil.pretrain.checkpoint.start_point import (
    KEY,
    POINTS,
    StartPoint,
    check_start_point,
    other_model,
    read_start_point,
)
from anadil.pretrain.state import Branch, State
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT

MODEL = "model"
"""Kind of the artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWeights:
    """A finished model, by its manifest."""

    place: str
    manifest: Manifest

    @property
    def state(self) -> State:
        """State with which a run begins: nothing is done, and the model's digest stands in its checkpoints."""
        branch = Branch(place=self.place, digest=self.manifest.digest, step=0, run=self.place)
        return State(step=0, tokens=0, seconds=0.0, branch=branch)

    @property
    def tokenizer(self) -> str:
        """Digest of the tokenizer that it was trained with: that of the trial, where one chose."""
        origin = self.manifest.origin
        return origin.get(f"{INPUT}trial") or origin.get(f"{INPUT}tokenizer", "")

    def folder(self, *, verify: bool = True) -> Path:
        """Return a local directory with its files, every byte compared with the manifest unless another process does."""
        if "://" in self.place:
            return copy_to_cache(self.place, self.manifest)
        if verify:
            artifact.verify_files(Path(self.place), self.manifest, self.place)
        return Path(self.place)


Start = StartPoint | StartWeights


def read_start(place: str) -> Start:
    """Read the manifest of what a run begins with; raises as `read_start_point`."""
    manifest = artifact.read_manifest(place)
    if manifest is not None and manifest.kind == MODEL:
        return StartWeights(place=place, manifest=manifest)
    return read_start_point(place)


def check_start(start: Start, recipe: Recipe, origin: Mapping[str, str]) -> list[str]:
    """Compare it with the recipe of the run that is to begin with it; return what is to be said."""
    if isinstance(start, StartPoint):
        if recipe.continues_champion:
            # How many steps the new text makes is not known yet, and decides nothing here.
            last = recipe.pretrain.phases[-1]
            settings = trajectory(recipe.pretrain, last, last.steps, (start.settings, start.step))
            recipe = recipe.model_copy(update={"pretrain": settings})
        return check_start_point(start, recipe, origin)
    theirs = {**start.manifest.origin, f"{INPUT}tokenizer": start.tokenizer}
    for reason in other_model(theirs, recipe, origin):
        raise RecipeError(f"{KEY}: {start.place} {reason}")
    points = read_table(start.place, start.manifest, "training.json").get(POINTS)
    if not isinstance(points, list) or not points:
        return []
    places = " and ".join(str(each["place"]) for each in points)
    return [f"{KEY}: only the weights of {start.place} are taken; with moments its run kept {places}"]
