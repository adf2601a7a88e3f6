"""Limits that spare a language's own text, in place of those in force that drop too much of it."""

import math

import numpy as np

from anadil.clean.filters.judge import Judge
from anadil.clean.kernels.columns import COLUMN, EXTERNAL
from anadil.clean.kernels.statistics import Matrix
from anadil.language.sample_quantile import WIDENED, source_quantile
from anadil.text.filter_rules import KEYS, RULES

SCALE = 1_000
"""Limits are rounded to thousandths."""
REPETITION, MOST_REPETITION = ("max_duplicate", "max_top"), 0.8
"""First words of limits of repetition, and the most that one is where a language is learnt. Chosen by us: a sample's few
lists and forms repeat themselves whatever the language, and would let pages of one paragraph through, of which .9 is a
duplicate."""


def spare_good(good: Matrix, judge: Judge, *, max_good_loss: float = 0.001) -> dict[str, float]:
    """Limits in place of those in force that drop more of the good documents than allowed, by their keys.

    A language that is learnt starts from general limits; this fits them to it. They spare a source that is larger
    than the sample, and texts of other kinds.
    """
    spared = {}
    for key in sorted(KEYS):
        places = [place for place, rule in enumerate(RULES) if rule.limit == key]
        names = [RULES[place].measure for place in places]
        values = good[:, [COLUMN[name] for name in names]]
        if np.isnan(values).any() or any(name in EXTERNAL for name in names):
            continue
        is_least, limit = RULES[places[0]].is_least, judge.limits[places[0]]
        broken = (values < limit if is_least else values > limit).any(axis=1)
        if broken.mean() > max_good_loss:
            spared[key] = _spared(values, key, max_good_loss, is_least=is_least)
    return spared


def _spared(values: Matrix, key: str, rate: float, *, is_least: bool) -> float:
    """The limit that all but this share of the documents' source keeps, rounded to the lenient side."""
    repeats = key.startswith(REPETITION)
    widened = 0 if repeats else WIDENED
    limits = [source_quantile(each, rate, largest=not is_least, widened=widened) for each in values.T]
    scaled = (min(limits) if is_least else max(limits)) * SCALE
    limit = (math.floor(scaled) if is_least else math.ceil(scaled)) / SCALE
    return min(limit, MOST_REPETITION) if repeats else limit
