"""Take the measures of `anadil.core.measures` in turn; this module names none of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anadil.core.measures import MEASURES, MeasureCheck, module_of
from anadil.evaluate.heldout import WordReader
from anadil.evaluate.models import CandidateModel, ScoredModel
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document
from anadil.text.language_data import Language

Tables = Mapping[str, dict[str, Any]]
"""Candidate -> its entry in `scores.json`."""


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

    value: float | None = None
    """None where it was not measured."""
    interval: tuple[float, float] | None = None
    """95 %."""
    num: int | None = None
    """Items that the interval is of."""


class Evaluator:
    """Everything that one measure takes all candidates' figures with. It leaves out what it has nothing to add to."""

    __slots__ = ()

    def measure(self, loaded: CandidateModel, table: Mapping[str, Any], /) -> dict[str, Any] | None:
        """Return the entry of a candidate; `table` holds its scores so far, with its generations."""

    def compare(self, tables: Tables) -> None:
        """Add to the candidates' entries what only a comparison tells."""

    def facts(self) -> dict[str, Any]:
        """Return the entry of `scores.json` over all candidates."""
        return {}

    def reader(self) -> WordReader | None:
        """Return the function that takes words and endings of each training text, when all candidates have written."""

    def earlier_scores(self) -> list[str]:
        """Return URIs of scores that measured the same models before."""
        return []


Evaluators = Mapping[str, Evaluator]
"""Measure -> what it measures with."""


def prepare_measures(asked: Asked) -> Evaluators:
    """Prepare each measure; one that has nothing to measure is left out."""
    prepared = {each.name: module_of(each, "measure").prepare(asked) for each in MEASURES}
    return {name: evaluator for name, evaluator in prepared.items() if evaluator is not None}


def check_values(table: Mapping[str, Any]) -> Iterable[tuple[MeasureCheck, CheckValue]]:
    """Yield each check of the measures with its value for a candidate's entry."""
    for each in MEASURES:
        if each.check:
            yield each.check, module_of(each, "measure").check_value(table) or CheckValue()
