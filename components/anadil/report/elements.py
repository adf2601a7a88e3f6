"""Tables and charts, the same for the page and for Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from anadil.core.format import integer_if_whole
from anadil.core.table import Table
from anadil.report.charts import Band, Bar, Estimate, Line, bar_chart, interval_chart, line_chart
from anadil.report.format import cell, evenly, figure, words_of
from anadil.report.read import table_of

# Most rows of the table under a line chart; the artifact holds every one.
TABLE_ROWS = 20
FACTS_ROWS = 40
TextTable = Table


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with the numbers it was drawn from."""

    title: str
    svg: Markup
    table: Table


def lines(
    title: str, unit: str, drawn: Sequence[Line], bands: Sequence[Band] = (), *, from_zero: bool = False,
    legend: bool = True,
) -> Chart | None:  # fmt: skip
    """A line chart and, under it, some of its points; None without points. Without `legend` the page names the lines."""
    svg = line_chart(drawn, title=title, unit=unit, bands=bands, from_zero=from_zero, legend=legend)
    steps = sorted({x for line in drawn for x, _ in line.points})
    values = [dict(line.points) for line in drawn]
    shown = evenly(steps, TABLE_ROWS)
    rows = [(figure(integer_if_whole(x)), *(figure(known.get(x)) for known in values)) for x in shown]
    note = f"{len(shown)} of {len(steps):,} logged steps." if len(shown) < len(steps) else ""
    columns = ("step", *(line.label for line in drawn))
    return chart(title, svg, Table(f"{title} ({unit})", columns, rows, note=note))


def bars(title: str, unit: str, drawn: Sequence[Bar], table: Table) -> Chart | None:
    """A bar chart and its table; None without bars."""
    return chart(title, bar_chart(drawn, title=title, unit=unit), table)


def intervals(title: str, unit: str, drawn: Sequence[Estimate], table: Table) -> Chart | None:
    """Estimates with their intervals and a table; None without estimates."""
    return chart(title, interval_chart(drawn, title=title, unit=unit), table)


def chart(title: str, svg: Markup, table: Table | None = None) -> Chart | None:
    """A drawn chart with its table; None for an empty drawing."""
    return Chart(title, svg, table or Table(title, (), ())) if svg else None


def facts_table(caption: str, data: Mapping[str, object], *, skipped: Sequence[str] = ()) -> Table:
    """A row for each field of a JSON table, and of the tables in it; lists are counted."""
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        inner = table_of(value)
        flat = [(f"{key}_{name}", item) for name, item in inner.items()] if inner else [(key, value)]
        rows += [
            (words_of(name), figure(len(item)) if isinstance(item, list) else cell(name, item))
            for name, item in flat
            if key not in skipped and not isinstance(item, dict)
        ]
    return Table(caption, ("", "value"), rows[:FACTS_ROWS])


def records_table(caption: str, records: Sequence[tuple[str, Mapping[str, object]]], named: str) -> Table:
    """A row for each named JSON table, a column for each small field that any of them has."""
    columns = dict.fromkeys(
        key for _, record in records for key, value in record.items() if not isinstance(value, dict | list)
    )
    keys = [key for key in columns if key != "name"]
    words = [any(isinstance(record.get(key), str) for _, record in records) for key in keys]
    return Table(
        caption,
        (named, *map(words_of, keys)),
        [(name, *(cell(key, record.get(key)) for key in keys)) for name, record in records],
        words=tuple(place for place, is_word in enumerate(words, start=1) if is_word),
    )
