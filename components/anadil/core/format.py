"""Numbers as people read them: the one place that rounds.

A quantity has one rule wherever it is printed: a figure has four significant digits, a share and a duration
below 10 s have three. Memory is in binary units (1 GiB is 1024**3 bytes), as devices are; storage is in decimal
ones (1 GB is 1000**3), as it is billed. What is not known is a dash, never a zero. The report puts in the
minus signs of print (`anadil.page.format`).
"""

import math
import re
from collections.abc import Callable

GIB = 1024**3
MIB = 1024**2
KIB = 1024
QUANTITIES = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
"""Source: Kubernetes, resource.Quantity."""
DASH = "\N{EM DASH}"
DIGITS = 4
"""Significant digits of a figure."""
SHARE_DIGITS = 3


CONTROLS = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\t")},
    **{code: f"\\u{code:04x}" for code in (0x2028, 0x2029)},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}
"""Characters that would end a line, or steer a terminal, and how each is written instead."""
JSON_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Those that JSON lets stand in a text."""
OWN_LINE = re.compile(r"\n(?= )")
"""A line feed of ours: the lines of a message, but for the first, are indented."""


def number(value: object) -> float | int | None:
    """The value where it is a finite number, else None; `True` is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def human_figure(value: object, digits: int = DIGITS) -> str:
    """Grouped integers, else significant digits; no exponent from 0.001 to 1e15. A word stays as it is."""
    if value is None:
        return DASH
    known = number(value)
    if known is None:
        return str(value)
    size = abs(known)
    if isinstance(known, int) or 10**digits <= size < 1e15:
        return f"{known:,.0f}"
    if size and not 1e-3 <= size < 1e15:
        mantissa, exponent = f"{known:.{digits - 1}e}".split("e")
        return f"{trimmed(mantissa)}e{int(exponent)}"
    places = digits - 1 - math.floor(math.log10(size)) if size else 0
    return f"{known:,.{max(0, places)}f}"


def human_count(value: float | None, unit: str = "") -> str:
    """A number with its unit; one that is whole has no decimal places."""
    return DASH if value is None else f"{human_figure(integer_if_whole(value))} {unit}".rstrip()


def with_article(noun: str) -> str:
    """A kind of artifact in a sentence: `a model`, `an adapter`, `scores`."""
    if noun.endswith("s") and noun != "corpus":
        return noun
    if noun.endswith("ed"):  # an adjective
        return f"a {noun} model"
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 file`, `1,200 files`; the noun in the singular, one that takes -s or -es."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def short_count(value: float | None) -> str:
    """A large number in short: `1.18 B`, `450.2 M`, `2.5 T`."""
    if value is None:
        return DASH
    for size, sign in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g} {sign}"
    return human_count(value)


def human_parameters(parameters: float) -> str:
    """The size of a model, such as `1.18B`."""
    return f"{parameters / 1e9:.3g}B"


def integer_if_whole(value: float) -> float | int:
    """An integer where the value is one, so that counts are printed as counts."""
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def trimmed(text: str) -> str:
    """Decimal places without zeros at their end."""
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def human_percent(share: float | None) -> str:
    """A share as per cent."""
    return DASH if share is None else f"{human_figure(float(share) * 100, SHARE_DIGITS)} %"


def human_bytes(num_bytes: float | None) -> str:
    """Text such as `1.5 GiB`, in the largest binary unit that gives 1 or more."""
    if num_bytes is None:
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def stored_bytes(num_bytes: float | None) -> str:
    """Text such as `14.1 GB`: what lies in storage, in decimal units."""
    if num_bytes is None:
        return DASH
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(num_bytes) >= 0.9995 * size:
            return f"{_three_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


def human_bandwidth(bytes_per_s: float | None) -> str:
    """Text such as `50.0 GB/s`."""
    return DASH if bytes_per_s is None else f"{stored_bytes(bytes_per_s)}/s"


def human_flop(flop: float | None) -> str:
    """An amount of compute, such as `6.1e19 FLOP`."""
    return DASH if flop is None else f"{flop:.3g} FLOP".replace("e+", "e")


def human_dollars(dollars: float | None) -> str:
    """A price: cents below 100."""
    if dollars is None:
        return DASH
    return f"USD {dollars:,.2f}" if abs(dollars) < 100 else f"USD {dollars:,.0f}"


def human_seconds(seconds: float | None) -> str:
    """Text such as `38.4 ms`, `42 s`, `3 min 20 s` or `5 h 10 min`; from two days on hours alone."""
    if seconds is None:
        return DASH
    if 0 < seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 60:
        return f"{_three_digits(seconds) if seconds < 10 else f'{seconds:.0f}'} s"
    if seconds >= 48 * 3600:
        return f"{seconds / 3600:,.0f} h"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s".removesuffix(" 0 s")
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min".removesuffix(" 0 min")


def human_hours(hours: float | None) -> str:
    """A duration given in hours."""
    return human_seconds(None if hours is None else hours * 3600)


def hours_and_days(hours: float | None) -> str:
    """A duration given in hours, with its days where it lasts some."""
    text = human_hours(hours)
    return text if hours is None or hours < 48 else f"{text} ({hours / 24:,.1f} days)"


def human_range(low: float | None, high: float | None, say: Callable[[float], str]) -> str:
    """Text such as `8 h to 12 h`; empty where an end is not known."""
    return "" if low is None or high is None else f"{say(low)} to {say(high)}"


def one_line(text: str, limit: int = 300) -> str:
    """A word or a sentence on one line, without the signs that would steer a terminal."""
    flat = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return f"{flat[: limit - 1]}\N{HORIZONTAL ELLIPSIS}" if len(flat) > limit else flat or DASH


def visible(text: str) -> str:
    """A line in which names and values of others, such as of files, steer no terminal and begin no line."""
    return text.translate(CONTROLS)


def visible_lines(text: str) -> str:
    """The same for a message, whose own lines are indented."""
    return "\n".join(map(visible, OWN_LINE.split(text)))


def amount(quantity: str) -> float:
    """The number that a quantity such as `500m` or `16Gi` means."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    assert match, quantity
    return float(match[1]) * QUANTITIES[match[2]]


def _three_digits(value: float) -> str:
    return human_figure(float(f"{value:.3g}"), SHARE_DIGITS)
