"""Changes of a recipe since its champion: what follows for a retraining, or why only a run from the base can obey them."""

import contextlib
from collections.abc import Iterable, Iterator

from anadil.artifacts.artifact import Manifest
from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.retrain.lineage import Lineage
from anadil.runtime.cache_key import BASE_FILES, INPUT, RECIPE, base_files, origin_changes, recipe_origin
from anadil.text.language import is_pack_path, load_language
from anadil.text.language_data import UnknownLanguageError

BINDING = ("language", "base.", "tokenizer.", "pretrain.sequence_length", "clean.minhash_")
"""Begins of keys that the champion's tokenizer, tokens and corpora follow from: with others none of them can be kept."""
CONSEQUENCES = {
    "clean.": "new text is cleaned by it, and earlier text stays as it is",
    "pretrain.": "training on the new text follows it",
    "sources.": "training on the new text follows it",
    "seed": "training follows it",
    "finetune.": "finetuning follows it",
    "evaluate.": "the scores follow it",
}
"""Begin of a key -> what follows of its change."""
OF_TEXT = ("clean.", "pretrain.", "sources.")
"""Begins of keys that only new text follows."""
IGNORED = ("clean.inputs", "pretrain.phases", "sources ")
"""Files are told by themselves; phases differ with the steps of a week; names of sources are told by themselves."""
OF_WEEK = ("finetune.inputs", "finetune.mix")
FROM_BASE = "train anew with --from-base, or set it back"


def changes_of(recipe: Recipe, lineage: Lineage) -> list[str]:
    """Return the changes of the recipe since the champion, `key before -> now` each."""
    changes = list(dict.fromkeys(_changes(recipe, lineage)))
    if binding := [each for each in changes if each.startswith(BINDING)]:
        raise RecipeError(
            f"the recipe is not the champion's ({lineage.champion.name} version {lineage.champion.version}): "
            f"{'; '.join(binding)}. Nothing of the champion can be kept then; {FROM_BASE}"
        )
    before, now = _sources(recipe, lineage)
    if ("" in before) != ("" in now):
        words = ("without sources", "with sources")
        raise RecipeError(
            f"sources: the champion was trained {words['' not in before]}, and the recipe is one {words['' not in now]}, so its "
            f"corpora are none of the recipe's; {FROM_BASE}"
        )
    return changes


def lines_of_changes(
    recipe: Recipe, lineage: Lineage, changes: Iterable[str], *, has_text: bool
) -> Iterator[str]:
    """Say what follows of each change.

    Args:
        recipe: The user's.
        lineage: Of the champion.
        changes: As `changes_of` returns them.
        has_text: There is new text; else finetuning and what is behind it run alone.
    """
    for each in changes:
        if not each.startswith(IGNORED):
            yield f"{each}: {_consequence(each, has_text=has_text)}"
    before, now = _sources(recipe, lineage)
    for name in sorted(now - before):
        yield f"sources.{name}: is new; all of its text is"
    for name in sorted(before - now):
        yield f"sources.{name}: is left out; its text is not repeated, and the champion goes on knowing it"


def _sources(recipe: Recipe, lineage: Lineage) -> tuple[set[str], set[str]]:
    """Return the sources of the champion and of the recipe; an empty name without sources."""
    return set(lineage.earlier), set(recipe.sources) or {""}


def _consequence(change: str, *, has_text: bool) -> str:
    if not has_text and change.startswith(OF_TEXT):
        return "the next new text follows it"
    return next(
        (text for begin, text in CONSEQUENCES.items() if change.startswith(begin)), "the run follows it"
    )


def _changes(recipe: Recipe, lineage: Lineage) -> Iterator[str]:
    """Yield `key before -> now` for each key that differs."""
    tokenizer = lineage.made["tokenizer"][1]
    yield from _of_stage("tokenizer", recipe, tokenizer)
    theirs, ours = tokenizer.origin.get(BASE_FILES), base_files(recipe.base.model).get(BASE_FILES)
    if theirs and ours and theirs != ours:
        yield f"base.model {recipe.base.model} has other files than the champion's base"
    yield from _of_stage("pretrain", recipe, lineage.model)
    for source, (_, corpus) in lineage.corpora.items():
        if not source:
            yield from _of_stage("clean", recipe, corpus)
        elif source in recipe.sources:
            for change in _of_stage("clean", recipe.of_source(source), corpus):
                yield change if change.startswith(BINDING) else f"{change} (source {source})"
    if "adapter" in lineage.made:
        adapter = lineage.made["adapter"][1]
        # One that went on with another has learnt the files and weights of its own week alone.
        others = OF_WEEK if f"{INPUT}{STAGES['finetune'].extends}" in adapter.origin else ()
        yield from (each for each in _of_stage("finetune", recipe, adapter) if not each.startswith(others))


def _of_stage(name: str, recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    sections = STAGES[name].sections
    # Inputs and files differ each week; keys alone are compared.
    others = {key: text for key, text in manifest.origin.items() if not key.startswith(RECIPE)}
    for change in origin_changes(manifest.origin, others | recipe_origin(recipe, sections), sections):
        phrase = change.removeprefix(RECIPE)
        if not (phrase.startswith("language ") and _is_same_language(recipe, manifest)):
            yield phrase


def _is_same_language(recipe: Recipe, manifest: Manifest) -> bool:
    """Return True for two ids of one language, such as `az` and `azj_Latn`."""
    theirs = manifest.recipe.get("language")
    if not isinstance(theirs, str) or is_pack_path(theirs) or is_pack_path(recipe.language):
        return False
    with contextlib.suppress(UnknownLanguageError):
        return load_language(theirs).code == load_language(recipe.language).code
    return False
