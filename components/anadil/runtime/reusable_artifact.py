"""Artifact that a stage made for another recipe of the same inputs, reused as a part of this run's result."""

import logging
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job

log = logging.getLogger(__name__)


def reusable_artifact(job: Job, name: str, recipe: Recipe) -> tuple[Path, Manifest] | None:
    """Return the artifact of a stage for another recipe and this job's inputs, fetched; None if there is none."""
    if job.recipe.storage.root is None:
        return None
    inputs: dict[str, Manifest] = {}
    for word, path in job.inputs.items():
        if (read := artifact.read_manifest(str(path))) is None:
            return None  # a key needs all of them
        inputs[word] = read
    stage = STAGES[name]
    origin = stage_origin(stage, recipe, inputs, (), job.side_files)
    uri = join(str(job.recipe.storage.root), stage.writes, artifact.origin_key(origin))
    try:
        manifest = artifact.read_manifest(uri)
        return None if manifest is None or manifest.origin != origin else fetch(uri, stage.writes)
    except IntegrityError as error:
        log.warning("%s; what it holds is made again", error)
        return None
