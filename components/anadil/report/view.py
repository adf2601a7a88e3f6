"""What a template can show: tables and charts, the same for the page and for Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from anadil.report.charts import Band, Bar, Line, bar_chart, line_chart
from anadil.report.figures import evenly, figure

TABLE_ROWS = 20
"""Most rows of the table under a line chart; the artifact holds every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text; the first column names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = ()
    """Columns, beside the first, that hold words and are aligned as such."""
    marked: int | None = None
    """Row that stands out."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture with the numbers it was drawn from."""

    title: str
    svg: Markup
    table: Table
    note: str = ""


def lines(
    title: str, unit: str, drawn: Sequence[Line], bands: Sequence[Band] = (), x_label: str = "step"
) -> Chart | None:
    """A line chart and, under it, some of its points; None where there is no point."""
    svg = line_chart(drawn, title=title, unit=unit, x_label=x_label, bands=bands)
    if not svg:
        return None
    steps = sorted({x for line in drawn for x, _ in line.points})
    values = [dict(line.points) for line in drawn]
    shown = evenly(steps, TABLE_ROWS)
    rows = tuple((figure(_whole(x)), *(figure(known.get(x)) for known in values)) for x in shown)
    some = len(shown) < len(steps)
    return Chart(
        title=title,
        svg=svg,
        table=Table(
            caption=f"{title} ({unit})",
            columns=(x_label, *(line.label for line in drawn)),
            rows=rows,
            note=f"{len(shown)} of {len(steps):,} logged steps." if some else "",
        ),
    )


def bars(title: str, unit: str, drawn: Sequence[Bar], table: Table, note: str = "") -> Chart | None:
    """A bar chart and its table; None where there is no bar."""
    svg = bar_chart(drawn, title=title, unit=unit)
    return Chart(title=title, svg=svg, table=table, note=note) if svg else None


def _whole(x: float) -> float | int:
    return int(x) if x == int(x) else x
