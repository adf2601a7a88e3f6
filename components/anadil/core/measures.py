"""The list of measures beside bits per byte. The folder of each in `evaluate` holds all that is its own.

Its module `measure` has `prepare(asked)`, which returns an `Evaluator`, or None where there is nothing to measure. With a check
it also has `check_value(table)`, which returns its value for a candidate. Its module `view`, without torch, has
`measures(scores)`, and may have `sentences(scores, candidate)` for the model card, `warnings(scores, candidates)` for the
report's verdict, and `metrics(table)`, the numbers of a candidate's scores that are worth following over runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from anadil.core.stage import SideFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureCheck:
    """A check of the gate on a measure; it only reports unless the recipe enforces it."""

    name: str
    """`<candidate>.<name>` in the gate."""
    limit: str
    """Key of `evaluate.gate` that holds its limit."""
    at_least: bool = False
    """The limit is a minimum; else a maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure that evaluation takes of each candidate."""

    name: str
    """Its folder in `evaluate`, and its entry in `scores.json`."""
    check: MeasureCheck | None = None
    files: SideFiles | None = None
    """Outside files that it reads."""


MEASURES = (
    Measure(name="own_chat"),
    Measure(name="made", check=MeasureCheck(name="made", limit="min_made_difference", at_least=True)),
    Measure(name="writing", check=MeasureCheck(name="foreign_script", limit="max_foreign_script_rate")),
    Measure(
        name="refusals", check=MeasureCheck(name="refusal_loss", limit="max_refusal_loss"),
        files=SideFiles(
            key="evaluate.refusals", only_if="evaluate.asks_refusals", reader="evaluate.refusals.requests:describe",
        ),
    ),
    Measure(
        name="preference", check=MeasureCheck(name="preference", limit="min_preference", at_least=True),
        files=SideFiles(key="evaluate.votes", reader="evaluate.preference.votes:describe"),
    ),
)  # fmt: skip
"""A row for each measure, in the order of the report."""


def module_of(measure: Measure, part: Literal["measure", "view"]) -> ModuleType:
    """Module of a measure's folder."""
    return import_module(f"anadil.evaluate.{measure.name}.{part}")


def view_results(name: str, *arguments: object) -> Iterator[Any]:
    """Yield what a function returns of each measure whose view has it."""
    views = (module_of(each, "view") for each in MEASURES)
    yield from (getattr(view, name)(*arguments) for view in views if hasattr(view, name))
