"""Charts as SVG text: pure functions from numbers to markup, without scripts or fonts of their own.

Colours are classes (`c0`, `c1`, ...) that the style sheet of the page defines for light, dark and
paper. The unit of every length is one of the view box, which the page scales to the column.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from anadil.report.figures import figure, short_figure

WIDTH = 480
HEIGHT = 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 40
BAR_ROW = 30
BAR_LABEL = 132
BAR_VALUE = 78
MAX_POINTS = 600
"""Most points of a drawn line; more than the pixels it gets would only make the page larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of the horizontal axis, such as a phase of training."""

    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One horizontal bar, with an interval where it is an estimate."""

    label: str
    value: float
    colour: int = 1
    low: float | None = None
    high: float | None = None


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) that enclose `low` and `high`.

    Source: Heckbert 1990, "Nice numbers for graph labels", Graphics Gems.
    """
    if not high > low:
        pad = abs(low) / 2 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(begin, end + 1)]


def thinned(
    points: Sequence[tuple[float, float]], limit: int = MAX_POINTS
) -> tuple[tuple[float, float], ...]:
    """At most `limit` points that keep the lowest and the highest of every stretch, so no spike is lost."""
    if len(points) <= limit:
        return tuple(points)
    size = math.ceil(len(points) / (limit // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return tuple(kept)


def line_chart(
    lines: Sequence[Line], *, title: str, unit: str, x_label: str = "step", bands: Sequence[Band] = ()
) -> Markup:
    """A line chart with ticks, unit, labelled bands and the ends of each line; empty without points.

    Args:
        lines: Points in ascending x.
        title: What a screen reader says it is.
        unit: Unit and name of the vertical axis.
        x_label: Name of the horizontal axis.
        bands: Stretches to shade, in turn.
    """
    drawn = [Line(label=i.label, points=thinned(i.points), colour=i.colour) for i in lines if i.points]
    if not drawn:
        return Markup()
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    scale = _Scale(min(xs), max(xs), nice_ticks(min(ys), max(ys)))
    parts = [*_bands(scale, bands), *_grid(scale, x_label, unit), *(_path(scale, line) for line in drawn)]
    said = "; ".join(
        f"{line.label}: from {figure(line.points[0][1])} to {figure(line.points[-1][1])}, "
        f"lowest {figure(min(y for _, y in line.points))}, highest {figure(max(y for _, y in line.points))}"
        for line in drawn
    )
    return _svg(title, said, HEIGHT, parts)


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str) -> Markup:
    """Horizontal bars from zero with values, and whiskers where intervals are given; empty without bars."""
    if not bars:
        return Markup()
    top = max(max(bar.value, bar.high or 0.0) for bar in bars)
    ticks = nice_ticks(0.0, top or 1.0, 4)
    room = WIDTH - BAR_LABEL - BAR_VALUE
    per_unit = room / ticks[-1]
    height = BAR_ROW * len(bars) + 34
    parts = [_tick_line(BAR_LABEL + tick * per_unit, height - 30, short_figure(tick)) for tick in ticks]
    for place, bar in enumerate(bars):
        parts.append(_bar(bar, 4 + place * BAR_ROW, per_unit))
    parts.append(_text(WIDTH - 2, height - 12, unit, "end", "axis"))
    said = "; ".join(f"{bar.label}: {figure(bar.value)}" for bar in bars)
    return _svg(title, f"{unit}. {said}", height, parts)


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
        if end - start > 7 * len(band.label):
            parts.append(_text((start + end) / 2, TOP + 14, band.label, "middle", "bandname"))
    return parts


def _path(scale: _Scale, line: Line) -> Markup:
    if len(line.points) == 1:
        x, y = line.points[0]
        return Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(
            line.colour, scale.x(x), scale.y(y)
        )
    places = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    return Markup('<polyline class="line c{}" points="{}"/>').format(line.colour, places)


def _bar(bar: Bar, y: float, per_unit: float) -> Markup:
    length = max(1.0, bar.value * per_unit)
    label = bar.label if len(bar.label) <= 18 else f"{bar.label[:17]}\N{HORIZONTAL ELLIPSIS}"
    end = BAR_LABEL + max(length, (bar.high or 0.0) * per_unit)
    parts = [
        _text(BAR_LABEL - 8, y + 15, label, "end", "name"),
        Markup('<rect class="bar c{}" x="{}" y="{}" width="{:.1f}" height="20" rx="2"/>').format(
            bar.colour, BAR_LABEL, y, length
        ),
        _text(end + 7, y + 15, figure(bar.value), "start", "value"),
    ]
    if bar.low is not None and bar.high is not None:
        low, high = BAR_LABEL + max(0.0, bar.low) * per_unit, BAR_LABEL + bar.high * per_unit
        parts += [
            _rule(low, y + 10, high, y + 10, "whisker"),
            _rule(low, y + 5, low, y + 15, "whisker"),
            _rule(high, y + 5, high, y + 15, "whisker"),
        ]
    return Markup().join(parts)


def _tick_line(x: float, bottom: float, label: str) -> Markup:
    return _rule(x, 0, x, bottom, "grid") + _text(x, bottom + 16, label, "middle")


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
