"""Axes of charts over steps: places in the view box, round ticks, and as many points as a screen shows."""

import math
from collections.abc import Sequence

WIDTH = 480
HEIGHT = 262
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 40, 40
# Most points of a drawn line; more than the pixels it gets would only make the page larger.
MAX_POINTS = 600

Points = Sequence[tuple[float, float]]


class Scale:
    """Map from values to places in the view box."""

    def __init__(self, low: float, high: float, ticks: list[float]) -> None:
        self.low, self.high, self.ticks = low, high, ticks

    def x(self, value: float) -> float:
        """Place of a value of the horizontal axis."""
        return LEFT + (value - self.low) / ((self.high - self.low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Place of a value of the vertical axis, which ends at its ticks."""
        bottom, top = self.ticks[0], self.ticks[-1]
        return HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)


def line_scale(lines: Sequence[Points], starts: Sequence[float] = (), *, from_zero: bool = False) -> Scale:
    """Scale of a line chart: its lines have points, and bands begin at `starts`."""
    xs, ys = ([point[place] for points in lines for point in points] for place in (0, 1))
    low = min(0.0, *ys) if from_zero else min(ys)
    return Scale(min([*xs, *starts]), max(xs), nice_ticks(low, max(ys)))


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
