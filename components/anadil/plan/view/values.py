"""Careful ways into a plan's JSON, and its numbers with their units as people read them.

A field that is not there or not known is a dash, never a crash and never a zero. Memory is told in
GiB (1024**3 bytes), as devices are; what lies in storage in GB (1000**3 bytes), as it is billed.
"""

import math
from collections.abc import Callable, Mapping

from anadil.core.format import GIB, human_bytes, human_figure, human_seconds

Plan = Mapping[str, object]
"""A plan's JSON, as `anadil plan -o json` prints it."""
DASH = "\N{EM DASH}"


def at(data: object, path: str) -> object:
    """The value at `a.b.c` of nested tables; None where any of them is missing."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def items(data: object, path: str) -> list[object]:
    """The list at `a.b.c`; an empty one where there is none."""
    found = at(data, path)
    return list(found) if isinstance(found, list | tuple) else []


def pairs(data: object, path: str) -> dict[str, float]:
    """Those fields of the table at `a.b.c` that are numbers."""
    found = at(data, path)
    known = {str(key): number(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
    return {key: value for key, value in known.items() if value is not None}


def number(value: object) -> float | None:
    """The value where it is a finite number, else None; `True` is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def text(value: object, limit: int = 300) -> str:
    """A word or a sentence on one line, without the signs that would steer a terminal."""
    if value is None or isinstance(value, Mapping | list | tuple):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float | int):
        return count(value)
    flat = " ".join("".join(sign if sign.isprintable() else " " for sign in str(value)).split())
    return f"{flat[: limit - 1]}\N{HORIZONTAL ELLIPSIS}" if len(flat) > limit else flat or DASH


def count(value: object, unit: str = "") -> str:
    """A number with its unit: grouped integers, four significant digits otherwise."""
    found = number(value)
    if found is None:
        return DASH
    whole = int(found) if found == int(found) and abs(found) < 1e15 else found
    return f"{human_figure(whole)} {unit}".rstrip()


def short_count(value: object, unit: str = "") -> str:
    """A large number in short: `1.18 B`, `450.2 M`, `2.5 T`."""
    found = number(value)
    if found is None:
        return DASH
    for size, sign in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(found) >= size:
            return f"{found / size:.4g} {sign} {unit}".rstrip()
    return count(found, unit)


def flop(value: object) -> str:
    """An amount of compute."""
    found = number(value)
    return DASH if found is None else f"{found:.3g} FLOP".replace("e+", "e")


def gib(value: object) -> str:
    """Memory: in GiB where that has three digits to show."""
    found = number(value)
    if found is None:
        return DASH
    return human_bytes(found) if abs(found) < GIB / 10 else f"{found / GIB:,.2f} GiB"


def gb(value: object) -> str:
    """Storage: bytes in decimal units, three significant digits."""
    found = number(value)
    if found is None:
        return DASH
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(found) >= 0.9995 * size:
            scaled = found / size
            return f"{scaled:.0f} {unit}" if scaled >= 99.95 else f"{scaled:.3g} {unit}"
    return f"{found:.0f} B"


def gb_per_s(value: object) -> str:
    """A bandwidth."""
    return DASH if number(value) is None else f"{gb(value)}/s"


def dollars(value: object) -> str:
    """A price: cents below 100."""
    found = number(value)
    if found is None:
        return DASH
    return f"USD {found:,.2f}" if abs(found) < 100 else f"USD {found:,.0f}"


def seconds(value: object) -> str:
    """A duration: milliseconds below a second, hours from two days on."""
    found = number(value)
    if found is None:
        return DASH
    if 0 < found < 0.9995:
        return f"{_three_digits(found * 1000)} ms"
    if found < 10:
        return f"{_three_digits(found)} s"
    if found >= 48 * 3600:
        return f"{found / 3600:,.0f} h"
    return human_seconds(found).removesuffix(" 0 s").removesuffix(" 0 min")


def hours(value: object) -> str:
    """A duration given in hours."""
    found = number(value)
    return DASH if found is None else seconds(found * 3600)


def short_hours(value: object) -> str:
    """A duration given in hours, for a narrow column: `8.6 h`."""
    found = number(value)
    return f"{found:,.1f} h" if found is not None and 1 <= found < 1_000 else hours(found)


def days(value: object) -> str:
    """A duration given in hours, with its days where it lasts some."""
    found = number(value)
    return hours(found) if found is None or found < 48 else f"{hours(found)} ({found / 24:,.1f} days)"


def percent(value: object) -> str:
    """A share as per cent."""
    found = number(value)
    if found is None:
        return DASH
    return f"{found * 100:.1f} %" if abs(found) >= 0.01 or not found else f"{found * 100:.2g} %"


def span(low: object, high: object, say: Callable[[object], str]) -> str:
    """Text such as `8 to 12 h`; empty where an end is not known."""
    if number(low) is None or number(high) is None:
        return ""
    return f"{say(low)} to {say(high)}"


def _three_digits(value: float) -> str:
    value = float(f"{value:.3g}")
    places = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, places)}f}"
