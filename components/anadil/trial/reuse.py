"""Finalists that were trained before: by an earlier start of this trial, or one at a time by pods of a pipeline.

A trial of one strategy and otherwise the same recipe and inputs holds what this one would train for it. It is found as
every artifact is, by the key of what decides it.
"""

import json
import logging
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Strategy
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job
from anadil.trial.finalists import Finalist
from anadil.trial.outcome import FinalistResult

log = logging.getLogger(__name__)

FOLDER = "finalists"
"""Where results lie, in the artifact and in the work directory."""


def find_result(job: Job, finalist: Finalist) -> FinalistResult | None:
    """The result of a finalist that is trained already; None where it has to be."""
    found = read_result(job.work / FOLDER, finalist.name)
    if found is None and (folder := _artifact_of(job, finalist.strategy)) is not None:
        found = read_result(folder / FOLDER, finalist.name)
    if found is not None:
        log.info("%s: trained already", finalist.name)
    return found


def keep_result(folder: Path, result: FinalistResult) -> None:
    """Write a result in one step, so that a start after a kill finds it whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{result.name}.draft"
    draft.write_text(json.dumps(as_json(result), indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / f"{result.name}.json")


def read_result(folder: Path, name: str) -> FinalistResult | None:
    """The result that `keep_result` wrote; None where it did not."""
    file = folder / f"{name}.json"
    return FinalistResult(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def as_json(result: FinalistResult) -> dict[str, object]:
    """The fields of a result."""
    return {name: getattr(result, name) for name in FinalistResult.__dataclass_fields__}


def _artifact_of(job: Job, strategy: Strategy) -> Path | None:
    """The artifact of a trial of this strategy only; None where there is none that can be used."""
    recipe, trial = job.recipe, job.recipe.tokenizer.trial
    assert trial is not None
    if recipe.storage.root is None or trial.strategies == (strategy,):
        return None
    manifests = {word: artifact.read_manifest(str(path)) for word, path in job.inputs.items()}
    known = {word: manifest for word, manifest in manifests.items() if manifest is not None}
    alone = trial.model_copy(update={"strategies": (strategy,)})
    settings = recipe.tokenizer.model_copy(update={"trial": alone})
    stage = STAGES["trial"]
    origin = stage_origin(stage, recipe.model_copy(update={"tokenizer": settings}), known, (), job.side_files)
    uri = join(str(recipe.storage.root), stage.writes, artifact.origin_key(origin))
    try:
        manifest = artifact.read_manifest(uri)
        return None if manifest is None or manifest.origin != origin else fetch(uri, stage.writes)[0]
    except IntegrityError as error:
        log.warning("%s; its tokenizer is tried again", error)
        return None
