"""Round ticks for an axis, and lines of few enough points."""

import math
from collections.abc import Sequence

MAX_POINTS = 600
"""Most points of a drawn line; more than the pixels it gets would only make the page larger."""


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


def thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most `MAX_POINTS` points that keep the lowest and the highest of every part, so no spike is lost."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    size = math.ceil(len(points) / (MAX_POINTS // 2))
    extremes: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        extremes += sorted(ends)
    return tuple(extremes)
