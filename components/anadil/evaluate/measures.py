"""Take the measures of `anadil.core.measures` in turn; this module names none of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from anadil.core.measures import MEASURES, Measure, module_of
from anadil.evaluate.models import CandidateModel, ScoredModel
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document
from anadil.text.language_data import Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Inputs of a measure."""

    recipe: Recipe
    language: Language
    heldout: Sequence[Document]
    retained: Sequence[Document]
    train: Callable[[], Iterable[Document]]
    """Reads all training text of the run again."""
    candidates: Sequence[ScoredModel]
    """The base first."""
    side_files: Mapping[str, Sequence[str]]
    """Recipe key -> local paths of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckValue:
    """Value of a gate check on a measure."""

    value: float | None
    """None where it was not measured."""
    interval: tuple[float, float] | None = None
    """95 %."""
    num: int | None = None
    """Items that the interval is of."""


Materials = Mapping[str, Any]
"""Measure -> what it prepared."""


def prepare_measures(asked: Asked) -> Materials:
    """Prepare each measure; one that has nothing to measure is left out."""
    prepared = {each.name: module_of(each, "measure").prepare(asked) for each in MEASURES}
    return {name: material for name, material in prepared.items() if material is not None}


def measure_candidate(
    loaded: CandidateModel, materials: Materials, table: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entries of a candidate; `table` holds its scores so far, with its generations."""
    entries = {
        each.name: module_of(each, "measure").measure(loaded, materials[each.name], table)
        for each in _of(materials)
    }
    return {name: entry for name, entry in entries.items() if entry is not None}


def compare_candidates(tables: Mapping[str, dict[str, Any]], materials: Materials) -> None:
    """Add to the candidates' entries what only a comparison tells."""
    for each in _of(materials):
        if compare := getattr(module_of(each, "measure"), "compare", None):
            compare(tables, materials[each.name])


def facts_of(materials: Materials) -> dict[str, Any]:
    """Return the entries of `scores.json` over all candidates."""
    modules = {each.name: module_of(each, "measure") for each in _of(materials)}
    return {name: each.facts(materials[name]) for name, each in modules.items() if hasattr(each, "facts")}


def word_readers(materials: Materials) -> list[Callable[[Any, Any], None]]:
    """Return the functions that take words and endings of each training text, when all candidates have written."""
    modules = {each.name: module_of(each, "measure") for each in _of(materials)}
    return [each.reader(materials[name]) for name, each in modules.items() if hasattr(each, "reader")]


def earlier_scores(materials: Materials) -> list[str]:
    """Return URIs of scores that measured the same models before."""
    modules = {each.name: module_of(each, "measure") for each in _of(materials)}
    uris = (
        each.earlier_scores(materials[name])
        for name, each in modules.items()
        if hasattr(each, "earlier_scores")
    )
    return [*chain.from_iterable(uris)]


def check_values(tables: Mapping[str, Mapping[str, Any]], candidate: str) -> Iterable[tuple[Any, CheckValue]]:
    """Yield each check of the measures with its value for a candidate."""
    for each in MEASURES:
        if each.checks:
            values = module_of(each, "measure").check_values(tables, candidate)
            yield from ((check, values.get(check.name, CheckValue(value=None))) for check in each.checks)


def _of(materials: Materials) -> list[Measure]:
    return [each for each in MEASURES if each.name in materials]
