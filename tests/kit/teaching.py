"""A base that is the teacher of one of three sources, in a vocabulary that lacks some of its tokens."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe, Storage
from anadil.runtime.execute import execute
from anadil.runtime.job import Job, Stream
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.runtime.tracking_spool import Tracker
from tests.kit.pretraining import make_tokenizer_artifact
from tests.kit.sources import make_sources_job, make_sources_recipe

MADE = {258: [72, 77], 273: [220, 82], 293: [64, 220, 81]}
"""Tokens that are no tokens of the base, and the base's pieces of each."""
ROWS = [MADE.get(row, [row]) for row in range(300)]


def teaching_recipe(
    base: Path,
    sources: Mapping[str, dict[str, Any]] | None = None,
    weight: float | str = 0.7,
    **pretrain: Any,
) -> Recipe:
    """The recipe of three sources, of which the base teaches `en` with four tokens."""
    pretrain = {"distillation": {"weight": weight, "top_k": 4}} | pretrain
    recipe = make_sources_recipe(base, sources or {"en": {"teacher": "base"}}, **pretrain)
    return recipe.model_copy(update={"storage": Storage(root=str(base.with_name("root")))})


def make_teaching_tokenizer(folder: Path) -> None:
    """Put the tokenizer of `ROWS` in the place of another."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    make_tokenizer_artifact(folder, ROWS)


def probabilities(folder: Path, recipe: Recipe, source: str = "en") -> MadeArtifact:
    """The artifact of a source, whose corpus and tokenizer are in the folder."""
    own, tokenizer = recipe.of_source(source), str(folder / "tokenizer")
    tokens = execute(
        STAGES["encode"], own, {"corpus": str(folder / f"corpus.{source}"), "tokenizer": tokenizer}, (), None
    )
    return execute(STAGES["distill"], own, {"tokens": tokens.uri, "tokenizer": tokenizer}, (), None)


def teaching_job(tmp_path: Path, recipe: Recipe, name: str = "a", tracker: Tracker | None = None) -> Job:
    """A job that reads the corpora, and the probabilities of the sources that the base teaches."""
    job = make_sources_job(tmp_path, recipe, name, tracker)
    streams = {}
    for source in (source for source, each in recipe.sources.items() if each.teacher):
        made = probabilities(tmp_path, recipe, source)
        manifest = artifact.read_manifest(made.uri)
        assert manifest is not None
        streams[f"probabilities.{source}"] = Stream(uri=made.uri, manifest=manifest)
    return replace(job, streams=streams)
