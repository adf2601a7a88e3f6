"""A plan for the terminal: plain lines of at most 100 columns, the answer first."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from anadil.plan.view import summary, tables
from anadil.plan.view import values as words
from anadil.plan.view.tables import Grid
from anadil.plan.view.values import DASH, Plan, at, items

COLUMNS = 96
BAR = 20
"""Columns of the longest bar."""
INDENT = "  "
NAME = 28
"""Columns of a layout's name in the table of layouts."""
NARROWEST = 20
"""Columns that a wrapped text keeps, however long its name is."""


def lines(plan: Mapping[str, object]) -> list[str]:
    """Every section of a plan as lines of plain text; fields that are not known are dashes."""
    shown: Sequence[list[str]] = (
        [*_answer(plan)],
        [*_parts(plan, tables.memory(plan), "memory.parts", "memory.outside")],
        [*_parts(plan, tables.step(plan), "step_parts_s")],
        [*_grid(tables.phases(plan)), *_wrapped(INDENT, summary.calibrated(plan))],
        [*_choices(plan)],
        [*_grid(tables.cost(plan)), *_wrapped(INDENT, summary.priced(plan))],
        [*_list(tables.checkpoints(plan))],
        [*_grid(tables.intervals(plan))],
        [*_list(tables.storage(plan))],
        [*_list(tables.reliability(plan))],
        [*_grid(tables.layouts(plan, name_length=NAME)), *_wrapped(INDENT, summary.searched(plan))],
        [*_assumptions(plan)],
    )
    return "\n\n".join("\n".join(block) for block in shown if block).splitlines()


def _answer(plan: Plan) -> Iterator[str]:
    yield from _wrapped("", f"{words.text(at(plan, 'recipe'))}. {summary.answer(plan)}")
    yield ""
    told = [*summary.headlines(plan), ("checked", summary.checked(plan))]
    known = [(name, value) for name, value in told if value and value != DASH]
    yield from _named(known)


def _parts(plan: Plan, grid: Grid, *places: str) -> Iterator[str]:
    """The parts, with bars for the phase where they add up to the most, and under them their sums."""
    if not grid.rows:
        return
    values: dict[str, list[float]] = {}
    for place in places:
        values |= tables.parts(plan, place)
    sums = [sum(column) for column in zip(*values.values(), strict=True)]
    heaviest = sums.index(max(sums)) if sums else 0
    column = [row[heaviest] for row in values.values()]
    caption, *rows = _grid(grid)
    if len(sums) > 1:
        caption = f"{caption}, bars for: {tables.phase_names(plan)[heaviest]}"
    yield caption
    for line_number, line in enumerate(rows):
        share = column[line_number - 1] / max(column) if 1 <= line_number <= len(column) else 0
        if line_number == len(column) + 1 and column:
            yield ""
        yield f"{line}{INDENT}{'#' * round(share * BAR)}".rstrip()


def _choices(plan: Plan) -> Iterator[str]:
    grid = tables.choices(plan)
    if grid.rows:
        yield grid.caption
    for name, value, why in grid.rows:
        yield from _wrapped(INDENT, f"{name}: {value}")
        if why != DASH:
            yield from _wrapped(INDENT * 3, why)


def _assumptions(plan: Plan) -> Iterator[str]:
    told = [words.text(item, 600) for item in items(plan, "assumptions")]
    if told:
        yield "Assumptions"
    for sentence in told:
        yield from _wrapped(INDENT, sentence, mark="- ")


def _list(grid: Grid) -> Iterator[str]:
    if grid.rows:
        yield grid.caption
    yield from _named([(row[0], row[1]) for row in grid.rows])


def _named(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        yield from _wrapped(INDENT, value, mark=f"{name:{width}}{INDENT}")


def _grid(grid: Grid) -> Iterator[str]:
    """Caption, header and rows; numbers to the right, words to the left, the marked row with a star."""
    if not grid.rows:
        return
    yield grid.caption
    cells = (grid.columns, *grid.rows)
    widths = [max(len(row[place]) for row in cells) for place in range(len(grid.columns))]
    for number_of_row, row in enumerate(cells):
        star = "* " if grid.marked is not None and number_of_row == grid.marked + 1 else INDENT
        texts = [
            f"{cell:<{width}}" if place == 0 or place in grid.words else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"{star}{INDENT.join(texts)}".rstrip()


def _wrapped(indent: str, sentence: str, mark: str = "") -> list[str]:
    room = max(COLUMNS, len(indent) + len(mark) + NARROWEST)
    return textwrap.wrap(
        sentence,
        room,
        initial_indent=f"{indent}{mark}",
        subsequent_indent=indent + " " * len(mark),
        break_on_hyphens=False,
    )
