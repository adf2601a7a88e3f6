"""Finalists that were trained before: by an earlier start of this trial, or one at a time by pods of a pipeline.

A trial of one strategy and otherwise the same recipe and inputs holds what this one would train for it. It is found as
every artifact is, by the key of what decides it.
"""

import json
import logging
from dataclasses import asdict
from pathlib import Path

from anadil.recipe.sections import Strategy
from anadil.runtime.job import Job
from anadil.runtime.reusable_artifact import reusable_artifact
from anadil.trial.finalists import Finalist
from anadil.trial.outcome import FinalistResult

log = logging.getLogger(__name__)

FOLDER = "finalists"
"""Where results lie, in the artifact and in the work directory."""


def find_result(job: Job, finalist: Finalist) -> FinalistResult | None:
    """The result of a finalist that is trained already; None where it has to be."""
    result = read_result(job.work / FOLDER, finalist.name)
    if result is None and (folder := _artifact_of(job, finalist.strategy)) is not None:
        result = read_result(folder / FOLDER, finalist.name)
    if result is not None:
        log.info("%s: trained already", finalist.name)
    return result


def keep_result(folder: Path, result: FinalistResult) -> None:
    """Write a result in one step, so that a start after a kill finds it whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{result.name}.draft"
    draft.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / f"{result.name}.json")


def read_result(folder: Path, name: str) -> FinalistResult | None:
    """The result that `keep_result` wrote; None where it did not."""
    file = folder / f"{name}.json"
    return FinalistResult(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def _artifact_of(job: Job, strategy: Strategy) -> Path | None:
    """The artifact of a trial of this strategy only; None where there is none that can be used."""
    trial = job.recipe.tokenizer.trial
    assert trial is not None
    if trial.strategies == (strategy,):
        return None
    alone = trial.model_copy(update={"strategies": (strategy,)})
    settings = job.recipe.tokenizer.model_copy(update={"trial": alone})
    reusable = reusable_artifact(job, "trial", job.recipe.model_copy(update={"tokenizer": settings}))
    return reusable[0] if reusable else None
