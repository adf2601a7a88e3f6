"""A part of the report and of a card that a stage brings: sentences, tables and charts under one heading.

A stage with such a part has a module `view` with `FILE`, the JSON file of its artifact, and `part(made, recipe,
manifests)`, which returns a `Part`, or None where there is nothing to tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anadil.core.table import Table

if TYPE_CHECKING:
    from anadil.page.charts import Chart  # whose packages a command without the report lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Sentences, tables and charts of one stage. Empty fields show nothing."""

    section: str
    """Id of the report's section that it stands in."""
    title: str = ""
    words: str = ""
    """A paragraph in front of the tables."""
    tables: Sequence[Table]
    """The first stands in front of the charts, the others behind them. A model card has the first."""
    reasons: Sequence[str] = ()
    """A list behind the first table."""
    charts: "Sequence[Chart]" = ()
    notes: Sequence[str] = ()
    licence_note: str = ""
    """Sentence of a model card on further licences that hold."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """Numbers worth following over runs, by a flat name."""


@dataclass(frozen=True, slots=True)
class MeasureView:
    """One measure of all candidates, as the report shows it."""

    title: str
    lead: str
    table: Table
    chart: "Chart | None" = None
