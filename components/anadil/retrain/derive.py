"""The recipe of a retraining: the user's, with the champion's artifacts and the new files in it."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from anadil.artifacts.chat_files import data_set_of
from anadil.core.errors import DataError, RecipeError
from anadil.core.reasons import reason_of
from anadil.core.stages import STAGES
from anadil.finetune.start_adapter import refuse_other_form
from anadil.recipe.retrain import Champion, Retrain
from anadil.recipe.sections import Recipe
from anadil.retrain.champion import ReleasedModel
from anadil.retrain.lineage import Lineage
from anadil.retrain.new_files import Inputs
from anadil.retrain.short_inputs import short_inputs
from anadil.runtime.job import is_left_out, kind_of, word_of

KEPT = ("tokenizer", "trial", "written")
"""Artifacts that every retraining takes as they are."""
OF_TEXT = (*KEPT, "corpus", "overlap", "tokens", "model")
"""Artifacts that one without new text takes as they are. What is merged of the model is found by its key."""
MEAN_OF = 8
"""Checkpoints whose mean a week ends with by default: measured in `benchmarks/retrain`."""


def derived_recipe(recipe: Recipe, lineage: Lineage, inputs: Mapping[str, Inputs], chats: Inputs) -> Recipe:
    """Return the recipe whose run teaches the champion the new files.

    Args:
        recipe: The user's.
        lineage: Of the champion.
        inputs: Source -> its files, of which those that are new are read.
        chats: Files of chats. Where no text is new, the run begins with finetuning.
    """
    places = lineage.places
    has_text = any(each.new for each in inputs.values())
    kinds = KEPT if has_text else OF_TEXT
    keeps = [word for word in places if kind_of(word) in kinds and not _is_unmade(word, recipe)]
    clean = {}
    for source in recipe.sources or ("",) if has_text else ():
        corpus = word_of("corpus", source)
        if corpus not in places:
            continue
        if source in inputs and inputs[source].new:
            key = f"sources.{source}.inputs" if source else "clean.inputs"
            files = short_inputs(
                inputs[source].new, inputs[source].sizes.keys() - set(inputs[source].new), key
            )
            clean[source] = (files, places[corpus])
        else:
            keeps.append(corpus)
    # Checked anew as a whole: a copy with other values would skip what the sections check of each other.
    data = json.loads(recipe.model_dump_json())
    for source, (files, since) in clean.items():
        _set_inputs(data, source, files, since)
    data["pretrain"]["start_from"] = start_of(recipe, lineage) if has_text else None
    _set_champion(data, recipe, lineage.champion, places, keeps)
    learnt_again = chats.sizes.keys() - set(chats.unlearnt)
    new_chats = short_inputs(chats.unlearnt, learnt_again, "finetune.inputs")
    data["retrain"]["new_chats"] = new_chats
    if goes_on_with_adapter(recipe, lineage, has_text=has_text):
        refuse_other_form(places["adapter"], lineage.made["adapter"][1], recipe)
        names = {data_set_of(uri) for uri in chats.unlearnt}
        # Weights of data sets of which no file is new would be refused as mistakes.
        mix = {name: weight for name, weight in recipe.finetune.mix.items() if name in names}
        data["finetune"] |= {"inputs": new_chats, "mix": mix, "start_from": places["adapter"]}
    return checked(data)


def with_week_end(recipe: Recipe) -> Recipe:
    """Return the recipe with the mean at the end of a week, where it says nothing of how training ends.

    A week's decay is a part of its own few steps. The mean of its checkpoints was better at equal tokens:
    `benchmarks/retrain`, "How a week ends".
    """
    settings = recipe.pretrain
    says = settings.model_fields_set & {"average_last", "decay_fraction"}
    if says or (settings.schedule == "cosine" and "schedule" in settings.model_fields_set):
        return recipe
    if any(phase.anneal for phase in settings.phases):
        return recipe
    mean = settings.model_copy(update={"schedule": "wsd", "average_last": MEAN_OF})
    return recipe.model_copy(update={"pretrain": mean})


def goes_on_with_adapter(recipe: Recipe, lineage: Lineage, *, has_text: bool) -> bool:
    """Return True if finetuning goes on with the champion's adapter, on new chats alone."""
    # An adapter fits the model that it was trained on, and new text makes another one.
    return wants_new_chats(recipe) and not has_text and "adapter" in lineage.made


def wants_new_chats(recipe: Recipe) -> bool:
    """Return True if the recipe asks for new chats alone."""
    return bool(recipe.retrain and recipe.retrain.chats == "new")


def recipe_from_base(recipe: Recipe, champion: ReleasedModel) -> Recipe:
    """Return the recipe of a run on all files from the base, whose result meets the champion."""
    data = json.loads(recipe.model_dump_json())
    # A checkpoint of an earlier run is no base.
    data["pretrain"]["start_from"] = None
    _set_champion(data, recipe, champion, {}, [])
    return checked(data)


def start_of(recipe: Recipe, lineage: Lineage) -> str:
    """Return the place of the weights that training begins with."""
    start = (recipe.retrain or Retrain()).start
    if start == "plateau" and not lineage.plateau:
        raise DataError(
            f"retrain.start: plateau: {lineage.places['model']} kept no checkpoint before its decay that can be seen from "
            "here; set it to weights or auto, or train with pretrain.schedule wsd and pretrain.copies.archive"
        )
    if lineage.plateau and (start == "plateau" or (start == "auto" and recipe.pretrain.schedule == "wsd")):
        return lineage.plateau
    return lineage.places["model"]


def checked(data: Mapping[str, Any]) -> Recipe:
    """Return a recipe of changed keys."""
    try:
        return Recipe.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise RecipeError(
            f"{key or 'recipe'}: {reason_of(first)}, in the recipe of the retraining; correct the recipe, or --from-base"
        ) from None


def _set_inputs(data: dict[str, Any], source: str, files: tuple[str, ...], since: str) -> None:
    if source:
        data["sources"][source]["inputs"] = files
        data["sources"][source]["clean"]["since"] = since
    else:
        data["clean"] |= {"inputs": files, "since": since}


def _set_champion(
    data: dict[str, Any], recipe: Recipe, champion: ReleasedModel, places: Mapping[str, str], keeps: list[str]
) -> None:
    # The release step compares version and digest with the registry, which may have moved on by then.
    known = Champion(
        name=champion.name, version=champion.version, uri=champion.uri, digest=champion.manifest.digest, artifacts=dict(places)
    )  # fmt: skip
    retrain = (recipe.retrain or Retrain()).model_copy(update={"champion": known, "keeps": tuple(keeps)})
    data["retrain"] = json.loads(retrain.model_dump_json())
    # The gate compares with the artifact that the run began with, whatever becomes of the alias meanwhile.
    data["evaluate"]["champion"] = champion.uri


def _is_unmade(word: str, recipe: Recipe) -> bool:
    """Return True for an artifact of a stage or source that the recipe leaves out."""
    stage = next(stage for stage in STAGES.values() if stage.writes == kind_of(word))
    source = word.partition(".")[2]
    return is_left_out(stage, recipe) or (bool(source) and source not in recipe.sources)
