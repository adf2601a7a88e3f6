"""Adapter of another run that finetuning begins with, in place of a new one. This module loads no torch."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.chat_files import HELDOUT_CHATS, kept_chats
from anadil.artifacts.prefetch import fetch
from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES, last_form
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT, RECIPE, origin_changes, recipe_origin
from anadil.text.chats import Chat

if TYPE_CHECKING:
    from anadil.model.process_group import Group

log = logging.getLogger(__name__)

STAGE = STAGES["finetune"]
KEY = STAGE.extends.key
KIND = STAGE.writes
FORM = tuple(f"finetune.{key}" for key in ("trains", "trains_embeddings", "rank", "alpha", "rslora", "dora"))
"""Keys that the form of an adapter follows from."""
MERGED = "merged"
"""Directory of its merged model, from which all weights learn on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAdapter:
    """An adapter on this machine's disk, verified."""

    folder: Path
    heldout: tuple[Chat, ...]
    """Chats that its training has never seen."""


def read_start_adapter(recipe: Recipe, model: Path, processes: "Group") -> StartAdapter | None:
    """Return the adapter that `finetune.start_from` names, compared with recipe and model; None where it names none."""
    if recipe.finetune.start_from is None:
        return None
    place = str(recipe.finetune.start_from)
    manifest = artifact.finished_manifest(place, KIND)
    refuse_other_form(place, manifest, recipe)
    taught, known = manifest.origin, artifact.read_manifest(str(model))
    if known is None or taught.get(last_form("model", taught, INPUT)) != known.digest:
        raise RecipeError(
            f"{KEY}: {place} was trained on another model than {model}; leave the key out, so that all chats are learnt anew"
        )
    folder, _ = processes.local_first(lambda _: fetch(place, KIND))
    heldout = tuple(kept_chats(folder / HELDOUT_CHATS))
    log.info("begins with the adapter %s, whose %d held-out chats stay held out", place, len(heldout))
    return StartAdapter(folder=folder, heldout=heldout)


def refuse_other_form(place: str, manifest: Manifest, recipe: Recipe) -> None:
    """Refuse an adapter of another form than the recipe's."""
    origin = recipe_origin(recipe, STAGE.keys)
    others = {name: text for name, text in manifest.origin.items() if not name.startswith(RECIPE)}
    changes = origin_changes(manifest.origin, others | origin, STAGE.keys)
    phrases = [each.removeprefix(RECIPE) for each in changes]
    if differing := [each for each in phrases if each.split(" ")[0] in FORM]:
        raise RecipeError(
            f"{KEY}: {place} has another form than the recipe's adapter: {'; '.join(differing)}; set it back, or learn all "
            "chats anew (retrain.chats: all)"
        )
