"""Figures, words and cells as the page prints them: `anadil.core.format` with the signs of print.

A field that a stage left out is shown as a dash, never as a zero.
"""

import re
from collections.abc import Sequence
from typing import TypeVar

from anadil.core.format import DASH, DIGITS, human_figure, human_percent, integer_if_whole, number, trimmed

T = TypeVar("T")

MINUS = "\N{MINUS SIGN}"
# No figure of a report is as small; sums of FP64 numbers near 1 differ by less.
ROUNDING = 1e-12


def figure(value: object, digits: int = DIGITS) -> str:
    """A number for people; see `human_figure`. What rounding leaves of a difference that is none is 0."""
    known = number(value)
    return _printed(human_figure(0 if known is not None and abs(known) < ROUNDING else known, digits))


def short_figure(value: object, digits: int = 4) -> str:
    """A number for the label of a tick: no trailing zeros, thousands as k, millions as M."""
    known = number(value)
    if known is None:
        return DASH
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(known) >= size:
            scaled = known / (1e3 if sign == "k" else size)
            return f"{trimmed(f'{scaled:.{digits}g}')}{sign}".replace("-", MINUS)
    mantissa, _, exponent = f"{known:.{digits}g}".partition("e")
    return _printed(f"{mantissa}{f'e{int(exponent)}' if exponent else ''}")


def setting(value: object) -> str:
    """A number that somebody chose, such as a limit: as short as it was written."""
    known = number(value)
    if known is None or isinstance(known, int) or not 1e-4 <= abs(known) < 1e4:
        return figure(integer_if_whole(known) if known is not None else None)
    return f"{known:.6g}".replace("-", MINUS)


def percent(value: object) -> str:
    """A share as per cent; see `human_percent`."""
    return _printed(human_percent(number(value)))


def signed_percent(value: float | None) -> str:
    """A relative change in per cent, with its sign."""
    if value is None:
        return DASH
    return f"{MINUS if value < 0 else '+'}{figure(abs(value), 3)} %"


def change_percent(before: object, after: object) -> float | None:
    """(after - before) / before in per cent; None where it cannot be said."""
    old, new = number(before), number(after)
    return None if not old or new is None else (new - old) / old * 100


def ratio(before: object, after: object) -> float | None:
    """The share `after / before`; None where it cannot be said."""
    old, new = number(before), number(after)
    return None if not old or new is None else new / old


def clip(value: object, limit: int) -> str:
    """A text of at most `limit` characters; what is cut off is counted at its end."""
    text = "" if value is None else str(value)
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()} \N{HORIZONTAL ELLIPSIS} ({len(text) - limit:,} more characters)"


def words_of(key: str) -> str:
    """A JSON key as words: `num_tokens` is `tokens`, `tokens_per_s` is `tokens per second`."""
    text = key.removeprefix("num_").replace("_", " ").strip()
    text = re.sub(r" per s$", " per second", "learning rate" if text == "lr" else text)
    return re.sub(r"^distinct (\d)", r"distinct-\1", text)


def plain_value(value: object) -> str:
    """Any small JSON value as one cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}".replace("-", MINUS)
    if number(value) is not None:
        return figure(value)
    if value is None or isinstance(value, dict | list):
        return DASH
    text = str(value)
    if text.startswith("/") or "://" in text:
        text = text.rstrip("/").rsplit("/", 1)[-1]  # the page names no place of a machine
    return f"{text[:16]}\N{HORIZONTAL ELLIPSIS}" if re.fullmatch(r"[0-9a-f]{40,}", text) else clip(text, 200)


def cell(key: str, value: object) -> str:
    """A value by its name: rates, shares and coverages are printed as per cent."""
    is_share = re.search(r"(^|_)(rate|share|coverage|accuracy)(_|$)", key)
    known = number(value)
    return percent(known) if is_share and known is not None and 0 <= known <= 1 else plain_value(value)


def evenly(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items at equal distances, the first and the last among them."""
    if len(items) <= limit:
        return list(items)
    last = len(items) - 1
    return [items[round(place * last / (limit - 1))] for place in range(limit)]


def _printed(text: str) -> str:
    """Replace a hyphen before a number by a minus sign; an exponent stays as programs write it, `2e-4`."""
    mantissa, sign, exponent = text.partition("e")
    return f"{mantissa.replace('-', MINUS)}{sign}{exponent}"
