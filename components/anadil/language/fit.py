"""Limits of the rules from text: what good documents keep and bad ones break.

A limit lies where so many of the good documents break it as the user allows. Limits are taken one after another,
that which drops most of the bad documents still left first, until none drops more of them than it costs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.artifacts import storage
from anadil.clean.filters.judge import CHECKS, RULES, Check, Judge
from anadil.clean.kernels.columns import EXTERNAL
from anadil.clean.kernels.statistics import Matrix
from anadil.core.errors import DataError
from anadil.language.sample_quantile import WIDENED, source_quantile
from anadil.language.sample_texts import read_texts
from anadil.text.language import Language

Mask = npt.NDArray[np.bool_]

MAX_GOOD_LOSS = 0.005
"""Share of the good documents that a limit may drop."""
MAX_TOTAL_LOSS = 0.03
"""Share of them that all limits together may drop."""
MIN_GAIN = 0.01
"""Share of the bad documents that a further limit must drop, of those that no other does."""
SCALE = 1_000
"""Limits are rounded to thousandths."""
REPETITION, MOST_REPETITION = ("max_duplicate", "max_top"), 0.8
"""How limits of repetition begin, and the most that one is where a language is learnt. Chosen by us: a sample's few lists and forms
repeat themselves whatever the language, and would let pages of one paragraph through, of which .9 is a duplicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLimit:
    """A limit that is proposed."""

    key: str
    """Of `clean.rules`."""
    rule: str
    limit: float
    good_dropped: float
    """Share of the good documents that break it."""
    bad_dropped: float
    bad_dropped_alone: float
    """Share of the bad documents that break it and no limit proposed before it."""
    present: float | None
    """The limit in force; None if there is none."""
    present_good_dropped: float
    present_bad_dropped: float

    def as_json(self) -> dict[str, Any]:
        """For printing."""
        return asdict(self)


def fit_limits(
    good: Matrix,
    bad: Matrix,
    judge: Judge,
    *,
    max_good_loss: float = MAX_GOOD_LOSS,
    max_total_loss: float = MAX_TOTAL_LOSS,
) -> list[FittedLimit]:
    """Propose limits, those first that drop most.

    Args:
        good: Statistics of good documents, in the order of `STATISTICS`.
        bad: Of bad ones.
        judge: Holds the limits in force.
        max_good_loss: Share of the good documents that one limit may drop.
        max_total_loss: Share of them that all may drop.
    """
    keys = sorted({str(check.limit) for check in CHECKS if _can_be_fitted(check, good)})
    limits = {key: _limit(good, key, max_good_loss) for key in keys}
    good_left, bad_left = np.ones(len(good), dtype=bool), np.ones(len(bad), dtype=bool)
    chosen: list[FittedLimit] = []
    while keys:
        gains = [float(np.mean(_breaks(bad, key, limits[key]) & bad_left)) for key in keys]
        best = keys.pop(int(np.argmax(gains)))
        after = good_left & ~_breaks(good, best, limits[best])
        if max(gains) < MIN_GAIN:
            break
        if 1 - after.mean() > max_total_loss:
            continue
        good_left, bad_left = after, bad_left & ~_breaks(bad, best, limits[best])
        chosen.append(_fitted(best, limits[best], max(gains), good, bad, judge))
    return chosen


def spare_good(good: Matrix, judge: Judge, *, max_good_loss: float = 0.001) -> dict[str, float]:
    """Limits in place of those in force that drop more of the good documents than allowed, by their keys.

    A language that is learnt starts from general limits; this fits them to it. They spare a source that is larger
    than the sample, and texts of other kinds.
    """
    keys = sorted({str(check.limit) for check in CHECKS if _can_be_fitted(check, good)})
    present = {key: _present(key, judge) for key in keys}
    strict = [key for key in keys if float(_breaks(good, key, present[key]).mean()) > max_good_loss]
    return {key: _spared(good, key, max_good_loss) for key in strict}


def drop_share(statistics: Matrix, limits: Iterable[FittedLimit]) -> float:
    """Share of the documents that break any of the limits."""
    dropped = np.zeros(len(statistics), dtype=bool)
    for each in limits:
        dropped |= _breaks(statistics, each.key, each.limit)
    return float(dropped.mean())


def as_recipe(limits: Sequence[FittedLimit], good: Matrix, bad: Matrix) -> str:
    """The limits as part of a recipe, each with its drop rates."""
    if not limits:
        return "# No limit tells the bad documents from the good ones.\n"
    shares = drop_share(good, limits), drop_share(bad, limits)
    lines = [
        f"# Together these drop {shares[0]:.1%} of the good documents and {shares[1]:.1%} of the bad ones."
    ]
    lines += ["clean:", "  rules:"]
    for each in limits:
        now = (
            "no limit"
            if each.present is None
            else f"{each.present:g}: {each.present_good_dropped:.1%}, {each.present_bad_dropped:.1%}"
        )
        rates = f"good dropped {each.good_dropped:.1%}, bad {each.bad_dropped:.1%} (now {now})"
        lines.append(f"    {each.key}: {each.limit:.6g}  # {rates}")
    return "\n".join(lines) + "\n"


def _can_be_fitted(check: Check, good: Matrix) -> bool:
    is_named = isinstance(check.limit, str) and check.limit != "min_own_letters"
    is_measured = check.column.name.lower() not in EXTERNAL and not np.isnan(good[:, check.column]).any()
    return is_named and is_measured


def _checks_of(key: str) -> list[Check]:
    return [check for check in CHECKS if check.limit == key]


def _limit(good: Matrix, key: str, max_loss: float) -> float:
    """The strictest limit that all but so many documents keep."""
    limits = []
    for check in _checks_of(key):
        ordered = np.sort(good[:, check.column])
        allowed = int(max_loss * len(ordered))
        limits.append(float(ordered[allowed if check.is_least else -1 - allowed]))
    return _lenient(key, limits)


def _spared(good: Matrix, key: str, rate: float) -> float:
    """The limit that all but this share of the documents' source keeps."""
    repeats = key.startswith(REPETITION)
    limit = _lenient(
        key,
        [
            source_quantile(
                good[:, check.column], rate, largest=not check.is_least, widened=0 if repeats else WIDENED
            )
            for check in _checks_of(key)
        ],
    )
    return min(limit, MOST_REPETITION) if repeats else limit


def _lenient(key: str, limits: Sequence[float]) -> float:
    """The most lenient of them, rounded to that side."""
    is_least = _checks_of(key)[0].is_least
    scaled = (min(limits) if is_least else max(limits)) * SCALE
    return (math.floor(scaled) if is_least else math.ceil(scaled)) / SCALE


def _breaks(statistics: Matrix, key: str, limit: float | None) -> Mask:
    broken = np.zeros(len(statistics), dtype=bool)
    for check in _checks_of(key):
        values = statistics[:, check.column]
        if limit is not None:
            broken |= values < limit if check.is_least else values > limit
    return broken


def _present(key: str, judge: Judge) -> float | None:
    number = next(number for number, check in enumerate(CHECKS) if check.limit == key)
    return None if np.isnan(judge.limits[number]) else float(judge.limits[number])


def _fitted(key: str, limit: float, gain: float, good: Matrix, bad: Matrix, judge: Judge) -> FittedLimit:
    present = _present(key, judge)
    return FittedLimit(
        key=key,
        rule=next(rule.name for rule in RULES if _checks_of(key)[0] in rule.checks),
        limit=int(limit) if limit.is_integer() else limit,
        good_dropped=float(_breaks(good, key, limit).mean()),
        bad_dropped=float(_breaks(bad, key, limit).mean()),
        bad_dropped_alone=gain,
        present=present,
        present_good_dropped=float(_breaks(good, key, present).mean()),
        present_bad_dropped=float(_breaks(bad, key, present).mean()),
    )


def read_statistics(patterns: Sequence[str], text_field: str, judge: Judge, language: Language) -> Matrix:
    """Statistics of the documents of text files.

    Raises:
        DataError: No file, a web page, or no document with a word.
    """
    uris = storage.expand(patterns, "anadil clean fit")
    texts = [text for raw in read_texts(uris, text_field) if (text := language.normalize(raw))]
    if not texts:
        raise DataError(f"{', '.join(patterns)}: no document with text")
    return judge.judge(texts).statistics
