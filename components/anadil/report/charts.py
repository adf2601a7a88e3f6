"""Charts as SVG text: pure functions from numbers to markup, without scripts or fonts of their own.

Colours are classes (`c0`, `c1`, ...) that the style sheet of the page defines for light, dark and
paper. The unit of every length is one of the view box, which the page scales to the column.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from anadil.core.format import integer_if_whole
from anadil.report.format import figure, short_figure
from anadil.report.scales import nice_ticks, thinned

WIDTH = 480
HEIGHT = 262
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 40, 40
BAR_ROW = 30
MAX_LABEL = 22
"""Characters of a bar's label."""
LETTER = 7.4
"""Width of a letter; system fonts differ, so it is a generous one."""
BAR_VALUE = 78
STACK_ROW = 62
MARK_ROW = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int = 1
    dashed: bool = False
    """Drawn so that it can be told from another one without colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A part of the horizontal axis, such as a phase of training."""

    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One horizontal bar."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One horizontal bar of parts that add up."""

    label: str
    total: str
    """The sum, with its unit, as the reader is told it."""
    parts: tuple[Bar, ...]
    """From the left; a colour of theirs is `k0`, `k1`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A value of the horizontal axis that is worth a line, such as a limit."""

    label: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One dot of a scatter chart; its label shows under the pointer."""

    label: str
    x: float
    y: float
    colour: int = 1


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str,
    bands: Sequence[Band] = (),
    from_zero: bool = False,
) -> Markup:
    """A line chart with ticks, unit, labelled bands and the ends of each line; empty without points.

    Args:
        lines: Points in ascending x.
        title: What a screen reader says it is.
        unit: Unit and name of the vertical axis.
        bands: Stretches to shade, in turn.
        from_zero: Whether the vertical axis begins at zero, as it must where sizes are compared.
    """
    # A long run has more steps than a screen has pixels, and the page has to stay small.
    drawn = [replace(line, points=thinned(line.points)) for line in lines if line.points]
    if not drawn:
        return Markup()
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    low = min(0.0, *ys) if from_zero else min(ys)
    scale = _Scale(min(xs + [band.start for band in bands]), max(xs), nice_ticks(low, max(ys)))
    parts = [*_bands(scale, bands), *_grid(scale, "step", unit), *(_path(scale, line) for line in drawn)]
    parts += _legend(drawn)
    said = "; ".join(
        f"{line.label}: from {figure(line.points[0][1])} to {figure(line.points[-1][1])}, "
        f"lowest {figure(min(y for _, y in line.points))}, highest {figure(max(y for _, y in line.points))}"
        for line in drawn
    )
    return _svg(title, said, HEIGHT, parts)


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str) -> Markup:
    """Horizontal bars from zero with their values; empty without bars."""
    if not bars:
        return Markup()
    left = _label_room([bar.label for bar in bars])
    top = max(0.0, *(bar.value for bar in bars)) or 1.0
    ticks = [tick for tick in nice_ticks(0.0, top) if tick <= top]
    per_unit = (WIDTH - left - BAR_VALUE) / top
    height = BAR_ROW * len(bars) + 44
    parts = [_tick_line(left + tick * per_unit, height - 42, tick) for tick in ticks]
    for place, bar in enumerate(bars):
        y, length = 4 + place * BAR_ROW, max(1.0, bar.value * per_unit)
        parts += [
            _text(left - 8, y + 15, _shortened(bar.label), "end", "name"),
            Markup('<rect class="bar c{}" x="{:.1f}" y="{}" width="{:.1f}" height="20" rx="2"/>').format(
                bar.colour, left, y, length
            ),
            _text(left + length + 7, y + 15, figure(integer_if_whole(bar.value)), "start", "value"),
        ]
    parts.append(_text(left, height - 6, unit, "start", "axis"))
    said = "; ".join(f"{bar.label}: {figure(integer_if_whole(bar.value))}" for bar in bars)
    return _svg(title, f"{unit}. {said}", height, parts)


def interval_chart(estimates: Sequence[Estimate], *, title: str, unit: str) -> Markup:
    """Estimates as dots with whiskers on an axis that shows zero; empty without estimates."""
    if not estimates:
        return Markup()
    left = _label_room([item.label for item in estimates])
    top = [end for i in estimates for end in (i.high, i.chance or 0.0)]
    # Zero is always in sight: whether an interval contains it is the question.
    ticks = nice_ticks(min(0.0, *(i.low for i in estimates)), max(0.0, *top), 4)
    per_unit = (WIDTH - left - BAR_VALUE / 2) / (ticks[-1] - ticks[0])
    height = BAR_ROW * len(estimates) + 44
    parts = [_tick_line(left + (tick - ticks[0]) * per_unit, height - 42, tick) for tick in ticks]
    zero = left - ticks[0] * per_unit
    parts.append(_rule(zero, 0, zero, height - 42, "zero"))
    for place, item in enumerate(estimates):
        y = 14 + place * BAR_ROW
        low, dot, high = (left + (x - ticks[0]) * per_unit for x in (item.low, item.value, item.high))
        parts += [
            _text(left - 8, y + 5, _shortened(item.label), "end", "name"),
            _rule(low, y, high, y, "whisker"),
            _rule(low, y - 6, low, y + 6, "whisker"),
            _rule(high, y - 6, high, y + 6, "whisker"),
            Markup('<circle class="dot c{}" cx="{:.1f}" cy="{}" r="5"/>').format(item.colour, dot, y),
        ]
        if item.chance is not None:
            guess = left + (item.chance - ticks[0]) * per_unit
            parts.append(_rule(guess, y - 14, guess, y + 14, "mark"))
    parts.append(_text(left, height - 6, unit, "start", "axis"))
    said = "; ".join(
        f"{i.label}: {figure(i.value)}, interval {figure(i.low)} to {figure(i.high)}"
        + (f", chance {figure(i.chance)}" if i.chance is not None else "")
        for i in estimates
    )
    return _svg(title, f"{unit}. {said}", height, parts)


def stacked_chart(stacks: Sequence[Stack], *, title: str, unit: str, marks: Sequence[Mark] = ()) -> Markup:
    """Horizontal bars of parts from zero, with lines where marks lie; empty without parts."""
    sums = [sum(part.value for part in stack.parts) for stack in stacks]
    top = max([*sums, *(mark.value for mark in marks)], default=0.0)
    if not top > 0:
        return Markup()
    per_unit = (WIDTH - 16) / top
    head, height = MARK_ROW * len(marks), MARK_ROW * len(marks) + STACK_ROW * len(stacks) + 40
    ticks = [tick for tick in nice_ticks(0.0, top) if tick <= top]
    parts = [_tick_line(8 + tick * per_unit, height - 36, tick, head) for tick in ticks]
    for place, stack in enumerate(stacks):
        y, x = head + place * STACK_ROW, 8.0
        parts.append(_text(8, y + 20, f"{stack.label}: {stack.total}", "start", "name halo"))
        for part in stack.parts:
            length = part.value * per_unit
            parts.append(
                Markup(
                    '<rect class="part k{}" x="{:.1f}" y="{}" width="{:.1f}" height="24">'
                    "<title>{}</title></rect>"
                ).format(part.colour, x, y + 28, length, part.label)
            )
            x += length
    for place, mark in enumerate(marks):
        x, y = 8 + mark.value * per_unit, MARK_ROW * (place + 1) - 5
        parts.append(_rule(x, y - 10, x, height - 36, "mark"))
        parts.append(_text(x - 6, y, mark.label, "end", "axis"))
    parts.append(_text(8, height - 3, unit, "start", "axis"))
    said = "; ".join(f"{stack.label}: {stack.total}" for stack in stacks)
    limits = "".join(f"; {mark.label}" for mark in marks)
    return _svg(title, f"{unit}. {said}{limits}", height, parts)


def scatter_chart(
    points: Sequence[Point],
    line: Line,
    *,
    title: str,
    units: tuple[str, str],
    chosen: Point | None = None,
    limit: Mark | None = None,
) -> Markup:
    """Dots over two axes that begin at zero, a line through some, and a ring round the chosen one.

    Args:
        points: Dots beside those of the line.
        line: What nothing lies above, in ascending x.
        title: What a screen reader says it is.
        units: Name and unit of the horizontal axis and of the vertical one.
        chosen: The dot that is marked, with its label beside it.
        limit: Where a vertical line is drawn.
    """
    dots = [*points, *([chosen] if chosen else [])]
    xs = [*(dot.x for dot in dots), *(x for x, _ in line.points)]
    ys = [*(dot.y for dot in dots), *(y for _, y in line.points)]
    if not xs or not max(xs) > 0:
        return Markup()
    right = max([*xs, limit.value] if limit else xs)
    # 2 % more than the last dot, or the frame would cut it.
    scale = _Scale(0.0, right * 1.02, nice_ticks(0.0, max(ys)))
    parts = _grid(scale, *units)
    if limit:
        x = scale.x(limit.value)
        parts += [_rule(x, TOP - 12, x, HEIGHT - BOTTOM, "mark"), _text(x - 6, TOP - 5, limit.label, "end")]
    if line.points:
        parts.append(_path(scale, line))
    parts += [_dot(scale, point, 3.5) for point in points]
    if chosen:
        x, y = scale.x(chosen.x), scale.y(chosen.y)
        side = "end" if x > WIDTH / 2 else "start"
        parts += [
            _dot(scale, chosen, 5),
            Markup('<circle class="ring" cx="{:.1f}" cy="{:.1f}" r="9"/>').format(x, y),
            _text(x + (9 if side == "end" else -9), y + 26, chosen.label, side, "value halo"),
        ]
    descriptions = [f"{dot.label}: {figure(dot.x)}, {figure(dot.y)}" for dot in ([chosen] if chosen else [])]
    return _svg(title, f"{units[1]} against {units[0]}. {'; '.join(descriptions)}", HEIGHT, parts)


class _Scale:
    """From values to places in the view box."""

    def __init__(self, low: float, high: float, ticks: list[float]) -> None:
        self.low, self.ticks = low, ticks
        self.span = (high - low) or 1.0
        self.high = high

    def x(self, value: float) -> float:
        return LEFT + (value - self.low) / self.span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        bottom, top = self.ticks[0], self.ticks[-1]
        return HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)


def _grid(scale: _Scale, x_label: str, unit: str) -> list[Markup]:
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y, "grid"))
        parts.append(_text(LEFT - 7, y + 4, short_figure(tick), "end"))
    parts += [
        _text(scale.x(tick), HEIGHT - BOTTOM + 18, short_figure(tick), "middle")
        for tick in nice_ticks(scale.low, scale.high)
        if scale.low <= tick <= scale.high
    ]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 5, x_label, "end", "axis"))
    parts.append(_text(2, 13, unit, "start", "axis"))
    return parts


def _bands(scale: _Scale, bands: Sequence[Band]) -> list[Markup]:
    parts = []
    for place, band in enumerate(bands):
        start, end = scale.x(max(band.start, scale.low)), scale.x(min(band.end, scale.high))
        if end <= start:
            continue
        shade = "band odd" if place % 2 else "band"
        parts.append(
            Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
                shade, start, TOP, end - start, HEIGHT - TOP - BOTTOM
            )
        )
        # A label that does not fit would run over its neighbour; the text under the charts has all.
        if end - start > 6.5 * len(band.label):
            parts.append(_text((start + end) / 2, TOP - 6, band.label, "middle", "bandname"))
    return parts


def _legend(lines: Sequence[Line]) -> list[Markup]:
    """Labels of several lines, from the right end of the first row; one line needs none."""
    parts, x = [], float(WIDTH - RIGHT)
    for line in reversed(lines if len(lines) > 1 else ()):
        parts.append(_text(x, 13, line.label, "end", "axis"))
        x -= LETTER * len(line.label) + 6
        parts.append(_path_of(f"{x - 22:.1f},9 {x:.1f},9", line))
        x -= 36
    return parts


def _path_of(places: str, line: Line) -> Markup:
    return Markup('<polyline class="line c{}{}" points="{}"/>').format(
        line.colour, " dashed" if line.dashed else "", places
    )


def _path(scale: _Scale, line: Line) -> Markup:
    if len(line.points) == 1:
        x, y = line.points[0]
        return Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(
            line.colour, scale.x(x), scale.y(y)
        )
    places = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    return _path_of(places, line)


def _dot(scale: _Scale, point: Point, radius: float) -> Markup:
    return Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>').format(
        point.colour, scale.x(point.x), scale.y(point.y), radius, point.label
    )


def _label_room(labels: Sequence[str]) -> float:
    return 14 + LETTER * max(len(_shortened(label)) for label in labels)


def _shortened(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}\N{HORIZONTAL ELLIPSIS}"


def _tick_line(x: float, bottom: float, value: float, top: float = 0) -> Markup:
    return _rule(x, top, x, bottom, "grid") + _text(x, bottom + 16, short_figure(value), "middle")


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
    ).format(WIDTH, height, f"{title}. {said}", title, Markup().join(escape(part) for part in parts))
