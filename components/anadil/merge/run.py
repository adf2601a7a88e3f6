"""Stage merge (model, base, other models -> merged): weights of several models become one model.

`merge.json` says what was merged, with which weights.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anadil.artifacts.mlmodel import write_mlmodel
from anadil.core.candidates import ANSWERS_FIGURE
from anadil.core.errors import DataError, RecipeError
from anadil.core.json_text import write_indented
from anadil.core.stages import forms_of, last_form
from anadil.merge.auto import choose_values
from anadil.merge.weights import Ends
from anadil.model.tiny import base_model
from anadil.recipe.merge import Merge
from anadil.recipe.sections import Base
from anadil.runtime.job import Figures, Job

log = logging.getLogger(__name__)

TABLE = "merge.json"
TOKENIZER = "tokenizer.json"


def run(job: Job) -> Figures:
    """Fill `job.out` with the merged model and `merge.json`."""
    settings = job.recipe.merge
    if settings is None:
        raise RecipeError("merge: is not set; say what is merged, such as --set merge.base_share=0.25")
    # The vocabulary that the model was trained in: a trial chose among those of the tokenizer.
    model, tokenizer = job.inputs["model"], job.inputs[last_form("tokenizer", job.inputs)]
    if (model / TOKENIZER).read_bytes() != (tokenizer / TOKENIZER).read_bytes():
        others = "".join(f", and --{each} where there was a {each}" for each in forms_of("tokenizer")[1:])
        raise DataError(
            f"{tokenizer}: is not the tokenizer that {model} was trained with; give that one{others}"
        )
    base = base_model(job.recipe.base, job.base_cache)
    ends = Ends.open(model, base, tokenizer, _additions(job, settings))
    if settings.is_auto:
        choice, measured = choose_values(job, base, model, ends.load_into)
        share, weights = choice.base_share, choice.weights
    else:
        share, measured = float(settings.base_share), {}
        weights = tuple(float(each.weight) for each in settings.add)
    ends.write(job.out, share, weights)
    answers = ends.chat(weights) is not None
    table = {
        "base": job.recipe.base.model,
        "base_share": share,
        "add": _added(settings, ends, weights),
        **measured,
    }
    write_indented(job.out / TABLE, table)
    # Names of directories stand there, and another place makes no other model.
    job.varying.extend([TABLE, *write_mlmodel(job.out, chats=answers)])
    log.info("merged: %.4g of the trained model, %.4g of %s", 1 - share, share, job.recipe.base.model)
    for each in table["add"]:
        log.info(
            "merged: %.4g of %s less %s (difference: %.2g of the weights)",
            each["weight"], each["model"], each["minus"], each["relative_difference"],
        )  # fmt: skip
    return {"base_share": share, "added": len(weights), ANSWERS_FIGURE: int(answers)}


def _additions(job: Job, settings: Merge) -> list[tuple[Path, Path]]:
    def directory(place: int, key: str, model: str, revision: str | None) -> Path:
        return base_model(Base(model=model, revision=revision), job.base_cache, f"merge.add.{place}.{key}")

    return [
        (
            directory(place, "model", each.model, each.revision),
            directory(place, "minus", each.minus, each.minus_revision),
        )
        for place, each in enumerate(settings.add)
    ]


def _added(settings: Merge, ends: Ends, weights: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model, "revision": each.revision, "minus": each.minus,
            "minus_revision": each.minus_revision, "weight": weight,
            "control_tokens": vector.control_tokens, "relative_difference": vector.relative_difference,
        }
        for each, vector, weight in zip(settings.add, ends.vectors, weights, strict=True)
    ]  # fmt: skip
