"""Refusal of an artifact that is given under a source's name and is not that source's."""

import contextlib
import json
from collections.abc import Mapping

from anadil.artifacts.artifact import Manifest
from anadil.core.errors import IntegrityError
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT, RECIPE, recipe_origin
from anadil.runtime.job import kind_of, source_of
from anadil.text.language import is_pack_path, load_language
from anadil.text.language_data import UnknownLanguageError

TABLE = "sources"
"""The recipe's table, which tokens follow from."""


def refuse_other_sources(recipe: Recipe, manifests: Mapping[str, Manifest], uris: Mapping[str, str]) -> None:
    """Refuse inputs of another source than that by whose name they are given.

    A corpus is told by its language alone: two names of the same text have one corpus.
    """
    if not recipe.sources:
        return
    for word, manifest in manifests.items():
        source = source_of(word) or next(iter(recipe.sources))
        if source not in recipe.sources:  # another one, in the step of a source
            continue
        kind = kind_of(word)
        fault = ""
        if kind == "corpus":
            fault = _other_language(recipe, source, manifest)
        elif kind == "tokens":
            fault = _other_settings(recipe, source, manifest)
        elif kind == "overlap":
            fault = _other_corpus(source, manifest, manifests)
        if fault:
            raise IntegrityError(
                f"{uris[word]}: {fault}; give the {kind} of source {source}, or make it again"
            )


def _other_language(recipe: Recipe, source: str, manifest: Manifest) -> str:
    theirs, ours = manifest.recipe.get("language"), recipe.of_source(source).language
    # A pack may be gone since, and its path says nothing.
    if not isinstance(theirs, str) or theirs == ours or is_pack_path(theirs) or is_pack_path(ours):
        return ""
    with contextlib.suppress(UnknownLanguageError):
        if load_language(theirs).code != load_language(ours).code:
            return f"is a corpus of language {theirs}, and that of source {source} is {ours}"
    return ""


def _other_settings(recipe: Recipe, source: str, manifest: Manifest) -> str:
    """Say where tokens follow from other keys of `sources`: another name, or another `max_tokens`."""
    now = recipe_origin(recipe.of_source(source), (TABLE,))
    before = {key: text for key, text in manifest.origin.items() if key.startswith(f"{RECIPE}{TABLE}")}
    if before == now:
        return ""
    listed = ", ".join(json.loads(before.get(f"{RECIPE}{TABLE}", "[]"))) or "a recipe without sources"
    if listed != source:
        return f"are tokens of {listed}, not of source {source}"
    name = next(name for name in (*now, *before) if now.get(name) != before.get(name))
    key = name.removeprefix(RECIPE)
    return f"are tokens with {key} {before.get(name, 'unset')}, and the recipe's is {now.get(name, 'unset')}"


def _other_corpus(source: str, manifest: Manifest, manifests: Mapping[str, Manifest]) -> str:
    theirs = manifest.origin.get("source", source).partition(" ")[0]
    if theirs != source:
        return f"is the overlap of source {theirs}, not of {source}"
    compared = manifest.origin.get(f"{INPUT}corpus.{source}")
    if "corpus" in manifests and compared not in {None, manifests["corpus"].digest}:
        return f"compares another corpus of source {source} than the one that is given"
    return ""
