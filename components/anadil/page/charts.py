"""Charts as SVG text: functions from numbers to markup, without scripts or fonts of their own.

Colours are classes (`c0`, `c1`, ...) that the style sheet of the page defines for light, dark and
paper. The unit of every length is one of the view box, which the page scales to the column.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, replace
from types import MappingProxyType

from markupsafe import Markup

from anadil.core.candidates import COLOURS
from anadil.core.format import integer_if_whole, number
from anadil.core.table import Table
from anadil.page.format import cell, evenly, figure, short_figure, words_of
from anadil.page.values import interval_of, table_of

WIDTH = 480
HEIGHT = 262
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 40, 40
# Most points of a drawn line; more than the pixels it gets would only make the page larger.
MAX_POINTS = 600

Points = Sequence[tuple[float, float]]
BAR_ROW = 30
MAX_LABEL = 22
# Width of a letter; system fonts differ, so it is a generous one.
LETTER = 7.4
letters: ContextVar[Callable[[str], float]] = ContextVar("letters", default=len)
"""Width of a label in letters. A translated page has other labels, which need other room."""
BAR_VALUE = 78
STACKED = (1, 4)
"""Colours of the sides of a histogram, from the bottom."""
# Most rows of the table under a line chart; the artifact holds every one.
TABLE_ROWS = 20
FACTS_ROWS = 40


PALETTE = (1, 4, 3, 5, 2)
"""Colours of names, those that differ most first."""
KEYS: Mapping[int, int] = MappingProxyType({1: 0, 2: 1, 3: 7, 4: 4, 5: 5})
"""Colour of a line -> the same colour among `Table.keys`, as `style.css` has them."""


class Scale:
    """Map from values to places in the view box. The vertical axis may be logarithmic."""

    def __init__(self, low: float, high: float, ticks: list[float], *, is_log: bool = False) -> None:
        self.low, self.high, self.ticks, self._is_log = low, high, ticks, is_log

    def x(self, value: float) -> float:
        """Place of a value of the horizontal axis."""
        return LEFT + (value - self.low) / ((self.high - self.low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Place of a value of the vertical axis, which ends at its ticks."""
        bottom, top = self.ticks[0], self.ticks[-1]
        if self._is_log:
            bottom, top, value = (math.log10(each) for each in (bottom, top, value))
        return HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)


def colours_of(names: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Return the colour of each name, and whether its line is dashed: the same one whatever order the names come in.

    A name keeps its colour beside others, unless theirs is the same: the later one in the alphabet then takes the next.
    """
    looks: dict[str, tuple[int, bool]] = {}
    for name in sorted(set(names)):
        first = hashlib.blake2b(name.encode(errors="replace"), digest_size=2, salt=b"colour").digest()
        every = [
            (PALETTE[(int.from_bytes(first) + place) % len(PALETTE)], place >= len(PALETTE))
            for place in range(2 * len(PALETTE))
        ]
        looks[name] = next((each for each in every if each not in looks.values()), every[0])
    return looks


def line_scale(
    lines: Sequence[Points], starts: Sequence[float] = (), *, from_zero: bool = False, is_log: bool = False
) -> Scale:
    """Scale of a line chart: its lines have points, above zero if it is logarithmic, and bands begin at `starts`."""
    xs, ys = ([point[place] for points in lines for point in points] for place in (0, 1))
    low = min(0.0, *ys) if from_zero else min(ys)
    ticks = log_ticks(min(ys), max(ys)) if is_log else nice_ticks(low, max(ys))
    return Scale(min([*xs, *starts]), max(xs), ticks, is_log=is_log)


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose two numbers above zero. Within one or two of them also 2 and 5 times each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first < 3 else (1,)
    every = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    begin = max((place for place, tick in enumerate(every) if tick <= low), default=0)
    end = next((place for place, tick in enumerate(every) if tick >= high and place > begin), len(every) - 1)
    return every[begin : end + 1]


def smoothed(points: Sequence[tuple[float, float]], half_life: float) -> tuple[tuple[float, float], ...]:
    """Exponential moving average over points, without the lean to the first one.

    Source: Kingma and Ba 2015, "Adam", section 3, on bias correction; TensorBoard smooths scalars so.
    """
    keep, total, weight = 0.5 ** (1 / half_life), 0.0, 0.0
    result = []
    for x, y in points:
        total, weight = keep * total + (1 - keep) * y, keep * weight + 1 - keep
        result.append((x, total / weight))
    return tuple(result)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) that enclose `low` and `high`.

    Source: Heckbert 1990, "Nice numbers for graph labels", Graphics Gems.
    """
    # Values that differ by rounding alone have no round numbers between them.
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        pad = abs(low) / 2 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    # The slack takes a step that rounding has made a little too small, or an end that lies on a tick.
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(begin, end + 1)]


def thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most `MAX_POINTS` points that keep the lowest and the highest of every part, so no spike is lost."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    size = math.ceil(len(points) / (MAX_POINTS // 2))
    extremes: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        extremes += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return tuple(extremes)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]
    _: KW_ONLY
    colour: int = 1
    dashed: bool = False
    half_life: float = 0.0
    """Points over which it is smoothed, and drawn over a faint one of what was measured. 0 draws that alone."""


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the horizontal axis, such as a phase of training."""

    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled value: a horizontal bar, a part of one, or a limit on the axis."""

    label: str
    value: float
    colour: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and the interval that it lies in."""

    label: str
    value: float
    low: float
    high: float
    colour: int = 1
    chance: float | None = None
    """Result of guessing, drawn as a dashed line across the row."""


@dataclass(frozen=True, slots=True)
class Point:
    """One dot of a scatter chart; its label shows under the pointer."""

    label: str
    x: float
    y: float
    colour: int = 1


class _Rows:
    """Labelled rows over one axis, as bars and intervals have them."""

    def __init__(self, labels: Sequence[str], low: float, span: float, room: float) -> None:
        self.left = 14 + LETTER * max(map(letters.get(), map(_shortened, labels)))
        self.height = BAR_ROW * len(labels) + 44
        self._low, self._per_unit = low, (WIDTH - self.left - room) / span

    def x(self, value: float) -> float:
        return self.left + (value - self._low) * self._per_unit

    def grid(self, ticks: Sequence[float]) -> list[Markup]:
        bottom = self.height - 42
        return [
            _rule(x, 0, x, bottom, "grid") + _text(x, bottom + 16, label, "middle")
            for x, label in zip(map(self.x, ticks), _labels(ticks), strict=True)
        ]

    def label(self, text: str, y: float) -> Markup:
        return _text(self.left - 8, y, _shortened(text), "end", "name")

    def unit(self, text: str) -> Markup:
        return _text(self.left, self.height - 6, text, "start", "axis")


def histogram_chart(
    edges: Sequence[float], sides: Sequence[tuple[str, Sequence[int]]], *, title: str
) -> Markup:
    """Bins of equal width on the page, with the counts of several sides on one another; their ends are the labels."""
    totals = [sum(counts) for counts in zip(*(counts for _, counts in sides), strict=True)]
    height, width = HEIGHT - TOP - BOTTOM, WIDTH / max(1, len(totals))
    parts: list[Markup] = []
    for place in range(len(totals)):
        y = float(TOP + height)
        words = ", ".join(f"{counts[place]:,} {name}" for name, counts in sides)
        shapes = []
        for colour, (_, counts) in zip(STACKED, sides, strict=False):
            length = height * counts[place] / (max(totals) or 1)
            y -= length
            shape = Markup('<rect class="bar c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
            shapes.append(shape.format(colour, place * width, y, width - 2, length))
        said = f"{figure(edges[place])} to {figure(edges[place + 1])}: {words}"
        parts.append(Markup("<g><title>{}</title>{}</g>").format(said, Markup().join(shapes)))
    ends = ((0, edges[0], "start"), (WIDTH, edges[-1], "end"))
    parts += [
        _text(x, HEIGHT - BOTTOM + 18, short_figure(integer_if_whole(edge)), anchor)
        for x, edge, anchor in ends
    ]
    return _svg(title, f"{sum(totals):,} in {len(totals)} bins", HEIGHT - BOTTOM + 24, parts)


def scatter_chart(
    points: Sequence[Point], line: Line, *, limit: Bar, title: str, units: tuple[str, str],
    chosen: Point | None = None,
) -> Markup:  # fmt: skip
    """Named dots over two axes that omit zero, a line through some, a limit, a ring round the chosen dot."""
    dots = [*points, *([chosen] if chosen else [])]
    xs = [*(dot.x for dot in dots), *(x for x, _ in line.points)]
    ys = [*(dot.y for dot in dots), *(y for _, y in line.points)]
    if not xs or not max(xs) > 0:
        return Markup()
    low, high = min([*xs, limit.value]), max([*xs, limit.value])
    # A margin, or the frame would cut the outermost dots.
    pad = (high - low) * 0.06
    scale = Scale(low - pad, high + pad, nice_ticks(min(ys), max(ys)))
    x = scale.x(limit.value)
    parts = [*_grid(scale, *units), _rule(x, TOP - 12, x, HEIGHT - BOTTOM, "mark")]
    parts.append(_beside(x, TOP - 5, limit.label, 6))
    parts += [_path(scale, line)] if line.points else []
    parts += [*(_dot(scale, point, 3.5) for point in points), *_names(scale, points)]
    said = ""
    if chosen:
        x, y = scale.x(chosen.x), scale.y(chosen.y)
        parts += [
            _dot(scale, chosen, 5),
            Markup('<circle class="ring" cx="{:.1f}" cy="{:.1f}" r="9"/>').format(x, y),
            _beside(x, y + 26, chosen.label, -9, "value halo"),
        ]
        said = f"{chosen.label}: {figure(chosen.x)}, {figure(chosen.y)}"
    return _svg(title, f"{units[1]} against {units[0]}. {said}", HEIGHT, parts)


def _beside(x: float, y: float, text: str, gap: float, kind: str = "tick") -> Markup:
    """A label on the side of a place that has room for it."""
    return _text(x - gap, y, text, "end", kind) if x > WIDTH / 2 else _text(x + gap, y, text, "start", kind)


def _names(scale: Scale, dots: Sequence[Point]) -> list[Markup]:
    """Labels over dots; one that would run into another is only under the pointer."""
    labels: dict[tuple[float, float], Markup] = {}
    for dot in dots:
        x, y = scale.x(dot.x), scale.y(dot.y) - 10
        if all(
            abs(x - other) > LETTER * letters.get()(dot.label) or abs(y - row) > 14 for other, row in labels
        ):
            labels[x, y] = _text(x, y, dot.label, "middle", "tick halo")
    return list(labels.values())


def _labels(ticks: Sequence[float]) -> list[str]:
    """Labels of ticks, with as many digits as they take to differ."""
    for digits in range(4, 13):
        labels = [short_figure(tick, digits) for tick in ticks]
        if len(set(labels)) == len(labels):
            break
    return labels


def _grid(scale: Scale, x_label: str, unit: str) -> list[Markup]:
    parts = []
    for tick, label in zip(scale.ticks, _labels(scale.ticks), strict=True):
        y = scale.y(tick)
        parts += [_rule(LEFT, y, WIDTH - RIGHT, y, "grid"), _text(LEFT - 7, y + 4, label, "end")]
    ticks = [tick for tick in nice_ticks(scale.low, scale.high) if scale.low <= tick <= scale.high]
    parts += [
        _text(scale.x(tick), HEIGHT - BOTTOM + 18, label, "middle")
        for tick, label in zip(ticks, _labels(ticks), strict=True)
    ]
    return [
        *parts,
        _text(WIDTH - RIGHT, HEIGHT - 5, x_label, "end", "axis"),
        _text(2, 13, unit, "start", "axis"),
    ]


def _bands(scale: Scale, bands: Sequence[Band]) -> list[Markup]:
    parts = []
    for place, band in enumerate(bands):
        start, end = scale.x(max(band.start, scale.low)), scale.x(min(band.end, scale.high))
        if end <= start:
            continue
        parts.append(
            Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
                "band odd" if place % 2 else "band", start, TOP, end - start, HEIGHT - TOP - BOTTOM
            )
        )
        # A label that does not fit would run over its neighbour; the text under the charts has all.
        if end - start > 6.5 * letters.get()(band.label):
            parts.append(_text((start + end) / 2, TOP - 6, band.label, "middle", "bandname"))
    return parts


def _legend(lines: Sequence[Line]) -> list[Markup]:
    """Labels of several lines, from the right end of the first row; one line needs none."""
    parts, x = [], float(WIDTH - RIGHT)
    for line in reversed(lines if len(lines) > 1 else ()):
        parts.append(_text(x, 13, line.label, "end", "axis"))
        x -= LETTER * letters.get()(line.label) + 6
        parts.append(_polyline(f"{x - 22:.1f},9 {x:.1f},9", line))
        x -= 36
    return parts


def _polyline(places: str, line: Line, kind: str = "") -> Markup:
    look = " ".join(filter(None, ("dashed" if line.dashed else "", kind)))
    return Markup('<polyline class="line c{}{}" points="{}"/>').format(
        line.colour, f" {look}" if look else "", places
    )


def _curve(scale: Scale, line: Line, kind: str = "") -> Markup:
    """A line; through two points it would be straight, which nobody has measured, so they stay points."""
    if len(line.points) > 2:
        return _path(scale, line, kind)
    return Markup().join(_dot(scale, Point(line.label, x, y, line.colour), 3.5) for x, y in line.points)


def _path(scale: Scale, line: Line, kind: str = "") -> Markup:
    return _polyline(" ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points), line, kind)


def _dot(scale: Scale, point: Point, radius: float) -> Markup:
    return Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>').format(
        point.colour, scale.x(point.x), scale.y(point.y), radius, point.label
    )


def _shortened(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}\N{HORIZONTAL ELLIPSIS}"


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        kind, x1, y1, x2, y2
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        kind, x, y, anchor, text
    )


def _svg(title: str, said: str, height: float, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>{}</svg>'
    ).format(WIDTH, height, f"{title}. {said}", title, Markup().join(parts))


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with the numbers it was drawn from."""

    title: str
    svg: Markup
    table: Table


def lines(
    title: str, unit: str, drawn: Sequence[Line], bands: Sequence[Band] = (), *, from_zero: bool = False,
    is_log: bool = False, legend: bool = True, x_label: str = "step",
) -> Chart | None:  # fmt: skip
    """A line chart of points in ascending x and, under it, some of its points; None without points.

    Without `legend` the page names the lines.
    """
    # A long run has more steps than a screen has pixels, and the page has to stay small.
    shown = [replace(line, points=thinned(line.points)) for line in drawn if line.points]
    if not shown:
        return None
    is_log = is_log and all(y > 0 for line in shown for _, y in line.points)
    starts = [band.start for band in bands]
    scale = line_scale([line.points for line in shown], starts, from_zero=from_zero, is_log=is_log)
    curves = [_curve(scale, line, "faint" if line.half_life else "") for line in shown]
    curves += [
        _curve(scale, replace(line, points=smoothed(line.points, line.half_life)))
        for line in shown
        if line.half_life
    ]
    parts = [*_bands(scale, bands), *_grid(scale, x_label, unit), *curves]
    parts += _legend(shown) if legend else []
    said = "; ".join(
        f"{line.label}: from {figure(line.points[0][1])} to {figure(line.points[-1][1])}, "
        f"lowest {figure(min(y for _, y in line.points))}, highest {figure(max(y for _, y in line.points))}"
        for line in shown
    )
    return Chart(title, _svg(title, said, HEIGHT, parts), _points_table(title, unit, drawn, x_label))


def _points_table(title: str, unit: str, drawn: Sequence[Line], x_label: str) -> Table:
    steps = sorted({x for line in drawn for x, _ in line.points})
    values = [dict(line.points) for line in drawn]
    shown = evenly(steps, TABLE_ROWS)
    rows = [(figure(integer_if_whole(x)), *(figure(known.get(x)) for known in values)) for x in shown]
    note = f"{len(shown)} of {len(steps):,} logged steps." if len(shown) < len(steps) else ""
    return Table(f"{title} ({unit})", (x_label, *(line.label for line in drawn)), rows, note=note)


def bars(title: str, unit: str, drawn: Sequence[Bar], table: Table) -> Chart | None:
    """Horizontal bars from zero with their values, and a table; None without bars."""
    if not drawn:
        return None
    top = max(0.0, *(bar.value for bar in drawn)) or 1.0
    rows = _Rows([bar.label for bar in drawn], 0.0, top, BAR_VALUE)
    parts = rows.grid([tick for tick in nice_ticks(0.0, top) if tick <= top])
    for place, bar in enumerate(drawn):
        y, length = 4 + place * BAR_ROW, max(1.0, rows.x(bar.value) - rows.left)
        parts += [
            rows.label(bar.label, y + 15),
            Markup('<rect class="bar c{}" x="{:.1f}" y="{}" width="{:.1f}" height="20" rx="2"/>').format(
                bar.colour, rows.left, y, length
            ),
            _text(rows.left + length + 7, y + 15, figure(integer_if_whole(bar.value)), "start", "value"),
        ]
    said = "; ".join(f"{bar.label}: {figure(integer_if_whole(bar.value))}" for bar in drawn)
    return Chart(title, _svg(title, f"{unit}. {said}", rows.height, [*parts, rows.unit(unit)]), table)


def intervals(title: str, unit: str, drawn: Sequence[Estimate], table: Table) -> Chart | None:
    """Estimates as dots with whiskers on an axis that shows zero, and a table; None without estimates."""
    if not drawn:
        return None
    top = [end for i in drawn for end in (i.high, i.chance or 0.0)]
    # Zero is always in sight: whether an interval contains it is the question.
    ticks = nice_ticks(min(0.0, *(i.low for i in drawn)), max(0.0, *top), 4)
    rows = _Rows([i.label for i in drawn], ticks[0], ticks[-1] - ticks[0], BAR_VALUE / 2)
    parts = [*rows.grid(ticks), _rule(rows.x(0.0), 0, rows.x(0.0), rows.height - 42, "zero")]
    said = []
    for place, item in enumerate(drawn):
        y, low, high = 14 + place * BAR_ROW, rows.x(item.low), rows.x(item.high)
        parts += [
            rows.label(item.label, y + 5),
            _rule(low, y, high, y, "whisker"),
            _rule(low, y - 6, low, y + 6, "whisker"),
            _rule(high, y - 6, high, y + 6, "whisker"),
            Markup('<circle class="dot c{}" cx="{:.1f}" cy="{}" r="5"/>').format(
                item.colour, rows.x(item.value), y
            ),
        ]
        said.append(f"{item.label}: {figure(item.value)}, interval {figure(item.low)} to {figure(item.high)}")
        if item.chance is not None:
            parts.append(_rule(rows.x(item.chance), y - 14, rows.x(item.chance), y + 14, "mark"))
            said[-1] += f", chance {figure(item.chance)}"
    svg = _svg(title, f"{unit}. {'; '.join(said)}", rows.height, [*parts, rows.unit(unit)])
    return Chart(title, svg, table)


def estimate(
    label: str, candidate: str, value: object, interval: object, chance: object = None
) -> list[Estimate]:
    """A candidate's value with its interval as the row of a chart; none without either."""
    known, ends = number(value), interval_of(interval)
    if known is None or ends is None:
        return []
    colour = COLOURS.get(candidate, 3)
    return [
        Estimate(label=label, value=known, low=ends[0], high=ends[1], colour=colour, chance=number(chance))
    ]


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
