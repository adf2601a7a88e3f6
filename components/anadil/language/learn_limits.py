"""Limits of the document filters, learnt of good text and tried on noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, PositiveInt

from anadil.clean.filters.judge import Judge
from anadil.clean.kernels.characters import Characters
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.statistics import Matrix
from anadil.language.sample_quantile import WIDENED, source_quantile
from anadil.language.spared_limits import MOST_REPETITION, REPETITION, spare_good
from anadil.text.filter_rules import KEYS, Limits, Share
from anadil.text.language_data import Language
from anadil.text.language_id import identify_language

DROP_RATE = 0.001
"""Share of own text, for each limit that is widened to spare it."""
STRICT_RATES = (0.001, 0.002, 0.004, 0.008)
"""To which a limit may be tightened where noise demands it."""
MAX_OWN_DROPPED, MAX_COST = 0.015, 0.005
"""Shares of the text set aside: by all rules together, and for noise where that much goes before; the aim is 3 % of text
never seen. Measured on Azerbaijani, of which .02 is damaged itself: .04 of what was not seen."""
MAX_NOISE_KEPT = 0.05
"""Share of each kind, in the text set aside; the aim is 10 % of noise never seen."""
MIN_LESS = 0.02
"""Share of a kind of noise that a limit must drop to be tightened: a little of a kind that nothing tells well is not worth own text."""
MIN_DOCUMENTS = 50
"""Fewer do not say how short a document may be."""
DIGITS = 3

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLimits:
    """Limits, and what they do to text that they were not fitted on."""

    limits: Limits
    own_dropped: float
    """Share of the good text, by identification and all limits."""
    noise_kept: dict[str, float]
    """By file or kind."""
    report: list[str]


MEASURES = {
    "min_mean_word_length": -1,
    "max_mean_word_length": 1,
    "min_alpha_words": -1,
    "min_stop_words": -1,
    "max_duplicate_lines": 1,
    "max_top_ngram": 1,
    "max_duplicate_ngrams": 1,
    "max_isolated": 1,
    "min_script": -1,
    "min_sentence_signs": -1,
    "max_words_per_sentence": 1,
    "max_broken_sentences": 1,
}
"""Limit -> 1 for a largest, -1 for a least one. The others are only loosened where own text does not keep them."""


def learn_limits(
    language: Language,
    fit: Sequence[str],
    aside: Sequence[str],
    noise: Mapping[str, Sequence[str]],
    lengths: Sequence[int],
) -> LearntLimits:
    """Learn the limits of a language.

    Args:
        language: With its identification and words; its limits are the general ones.
        fit: Good text that they are fitted on.
        aside: Good text that losses are measured on.
        noise: File or kind -> text that is to be dropped.
        lengths: Words of each document of the sample.
    """
    tables = Characters(language)
    rows = _measured(fit, language, tables)
    # Where no spaces part words, sentences have no length in words.
    values = {name: column for name in MEASURES if not np.isnan(column := _column(rows, name)).all()}
    general = language.limits
    chosen = {name: _lenient(name, column, general) for name, column in values.items()}
    chosen["min_words"] = _min_words(lengths, general)
    chosen["max_words"] = max(general["max_words"] or 0, *lengths)
    spared = spare_good(rows, Judge(_with(language, chosen), characters=tables), max_good_loss=DROP_RATE)
    chosen = {name: _bounded(name, value) for name, value in spared.items()} | chosen
    judge = _Judge(language, tables, aside, noise)
    chosen, report = _tightened(judge, values, chosen)
    return LearntLimits(
        limits=_with(language, chosen).limits,
        own_dropped=judge.own_dropped(chosen),
        noise_kept=judge.noise_kept(chosen),
        report=[*judge.drop_report(chosen), *report],
    )


def _with(language: Language, chosen: Mapping[str, float]) -> Language:
    """The language with limits in place of its own."""
    whole = {
        name: int(value) if KEYS[name].type in (NonNegativeInt, PositiveInt) else value
        for name, value in chosen.items()
    }
    return replace(language, limits={**language.limits, **whole})


def _column(rows: Matrix, name: str) -> Values:
    return rows[:, COLUMN[KEYS[name].measure]]


def _measured(texts: Sequence[str], language: Language, tables: Characters) -> Matrix:
    """Statistics of the texts that have words; whether they are in the language is one of them."""
    worded = [text for text in texts if not text.isspace() and text]
    identified = [identify_language(text, language) for text in worded]
    rows = Judge(language, characters=tables).judge(worded, identified).statistics
    return rows[rows[:, COLUMN["words"]] > 0]


def _quantile(name: str, column: Values, rate: float, widened: float = 0.0) -> float:
    sign = MEASURES[name]
    moved = source_quantile(column, rate, largest=sign > 0, widened=widened)
    if name == "min_stop_words":
        return float(max(0, math.floor(moved)))
    scaled = moved * 10**DIGITS
    rounded: float = (math.ceil(scaled) if sign > 0 else math.floor(scaled)) / 10**DIGITS
    return _bounded(name, rounded)


def _bounded(name: str, value: float) -> float:
    """A tail may be drawn beyond what a share or a length can be."""
    return min(1.0, max(0.0, value)) if KEYS[name].type is Share else max(0.0, value)


def _lenient(name: str, column: Values, limits: Limits) -> float:
    """The published limit, or what spares own text; lengths and stop words are the language's alone."""
    repeats = name.startswith(REPETITION)
    learnt = _quantile(name, column, DROP_RATE, 0 if repeats else WIDENED)
    learnt = min(learnt, MOST_REPETITION) if repeats else learnt
    if "length" in name:
        return learnt
    if name == "min_stop_words":
        return min(_quantile(name, column, STRICT_RATES[-1]), 2)  # Gopher's
    general = limits[name]
    assert general is not None, name
    return max(general, learnt) if MEASURES[name] > 0 else min(general, learnt)


def _min_words(lengths: Sequence[int], general: Limits) -> int:
    usual = int(general["min_words"] or 0)
    if len(lengths) < MIN_DOCUMENTS:
        return usual
    # Lengths are nearer to log-normal than to normal.
    least = source_quantile(np.log(np.maximum(lengths, 1)), DROP_RATE, largest=False)
    return max(1, min(usual, int(math.exp(least))))


class _Judge:
    """Keeps of texts what limits keep; each text is identified and measured once."""

    def __init__(
        self, language: Language, tables: Characters, own: Sequence[str], noise: Mapping[str, Sequence[str]]
    ) -> None:
        self._language, self._tables = language, tables
        self._own = _measured(own, language, tables), len(own)
        self._noise = {
            place: (_measured([language.normalize(text) for text in texts], language, tables), len(texts))
            for place, texts in noise.items()
        }

    def _reasons(self, rows: Matrix, chosen: Mapping[str, float]) -> list[str | None]:
        judge = Judge(_with(self._language, chosen), characters=self._tables)
        return list(judge.judge_statistics(rows).reasons)

    def _kept(self, texts: tuple[Matrix, int], chosen: Mapping[str, float]) -> float:
        rows, total = texts
        return self._reasons(rows, chosen).count(None) / max(1, total)

    def drop_report(self, chosen: Mapping[str, float]) -> list[str]:
        """Lines that say how much good text identification and each limit drop alone."""
        rows, _ = self._own
        dropped = {"identification": rows[:, COLUMN["language"]] < 1}
        for name in sorted(chosen):
            column, limit = _column(rows, name), chosen[name]
            dropped[name] = column < limit if name.startswith("min_") else column > limit
        return [
            f"{name} {chosen.get(name, '')}".strip() + f": drops {float(each.mean()):.2%}"
            for name, each in dropped.items()
        ]

    def own_dropped(self, chosen: Mapping[str, float]) -> float:
        """Share of the good text."""
        return 1 - self._kept(self._own, chosen)

    def noise_kept(self, chosen: Mapping[str, float]) -> dict[str, float]:
        """Share of each kind."""
        return {place: self._kept(texts, chosen) for place, texts in self._noise.items()}


def _tightened(
    judge: _Judge, values: Mapping[str, Values], chosen: dict[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Tighten limits, that first which drops most noise for the own text that it costs, until little noise is kept."""
    report: list[str] = []
    kept, dropped = _excess(judge.noise_kept(chosen)), judge.own_dropped(chosen)
    most = max(MAX_OWN_DROPPED, dropped + MAX_COST)
    while kept > 0:
        best: tuple[float, dict[str, float], str] | None = None
        for name in values:
            for rate in STRICT_RATES:
                tried = chosen | {name: _quantile(name, values[name], rate)}
                cost = judge.own_dropped(tried)
                if tried == chosen or cost > most:
                    continue
                less = kept - _excess(judge.noise_kept(tried))
                gain = less / (max(0.0, cost - dropped) + DROP_RATE)
                if less > MIN_LESS and (best is None or gain > best[0]):
                    best = gain, tried, name
        if best is None:
            worst = max(judge.noise_kept(chosen).values())
            report.append(f"of some noise {worst:.0%} is kept: no limit that spares own text drops more")
            break
        _, chosen, name = best
        kept, dropped = _excess(judge.noise_kept(chosen)), judge.own_dropped(chosen)
        report.append(f"{name} is {chosen[name]:g}, tighter than its own text needs, because of the noise")
    return chosen, report


def _excess(kept: Mapping[str, float]) -> float:
    """How much noise of all kinds is kept beyond what may be: a kind that no limit drops must not end the search."""
    return sum(max(0.0, share - MAX_NOISE_KEPT) for share in kept.values())
