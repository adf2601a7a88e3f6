"""Limits of the document filters, learnt of good text and tried on noise."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, PositiveInt

from anadil.clean.filters.judge import Judge
from anadil.clean.kernels.characters import Characters
from anadil.clean.kernels.columns import COLUMN, EXTERNAL
from anadil.clean.kernels.statistics import Matrix
from anadil.text.filter_rules import KEYS, RULES, Limits, Share
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
SCALE = 1_000
"""Limits are rounded to thousandths, to the lenient side."""
REPETITION, MOST_REPETITION = ("max_duplicate", "max_top"), 0.8
"""First words of limits of repetition, and the most that one is where a language is learnt. Chosen by us: a sample's few
lists and forms repeat themselves whatever the language, and would let pages of one paragraph through, of which .9 is a
duplicate."""
MEASURED = (
    "min_mean_word_length", "max_mean_word_length", "min_alpha_words", "min_stop_words", "max_duplicate_lines",
    "max_top_ngram", "max_duplicate_ngrams", "max_isolated", "min_script", "min_sentence_signs",
    "max_words_per_sentence", "max_broken_sentences",
)  # fmt: skip
"""Limits that are learnt; the others are only loosened where own text does not keep them."""
WIDENED = 0.2
"""Share of the distance from the median that is added to it: text of another kind than the sample is less likely."""
MOST_SEEN = 0.25
"""Share beyond the value that the tail is drawn from, of the smallest samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLimits:
    """Limits, and what they do to text that they were not fitted on."""

    limits: Limits
    own_dropped: float
    """Share of the good text, by identification and all limits."""
    noise_kept: dict[str, float]
    report: list[str]


def learn_limits(
    language: Language, fit: Sequence[str], aside: Sequence[str], noise: Mapping[str, Sequence[str]],
    lengths: Sequence[int],
) -> LearntLimits:  # fmt: skip
    """Learn the limits of a language.

    Args:
        language: Its identification and words are learnt; its limits are the general ones.
        fit: Good text that they are fitted on.
        aside: Good text that losses are measured on.
        noise: File or kind -> text that is to be dropped.
        lengths: Words of each document of the sample.
    """
    tables = Characters(language)
    rows = _measured(fit, language, tables)
    # Where no spaces part words, sentences have no length in words.
    values = {name: column for name in MEASURED if not np.isnan(column := _column(rows, name)).all()}
    general = language.limits
    chosen = {name: _lenient(name, column, general) for name, column in values.items()}
    chosen["min_words"] = _min_words(lengths, general)
    chosen["max_words"] = max(general["max_words"] or 0, *lengths)
    chosen = spare_good(rows, Judge(_with(language, chosen), characters=tables)) | chosen
    judge = _Judge(language, tables, aside, noise)
    chosen, report = _tightened(judge, values, chosen)
    return LearntLimits(
        limits=_with(language, chosen).limits,
        own_dropped=judge.own_dropped(chosen),
        noise_kept=judge.noise_kept(chosen),
        report=[*judge.drop_report(chosen), *report],
    )


def spare_good(good: Matrix, judge: Judge) -> dict[str, float]:
    """Loosen the limits in force that drop more than `DROP_RATE` of the good documents; return these, by their keys.

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
        limit = judge.limits[places[0]]
        broken = (values < limit if RULES[places[0]].is_least else values > limit).any(axis=1)
        if broken.mean() > DROP_RATE:
            spared[key] = _sparing(key, values)
    return spared


def _with(language: Language, chosen: Mapping[str, float]) -> Language:
    whole = {
        name: int(value) if KEYS[name].type in (NonNegativeInt, PositiveInt) else value
        for name, value in chosen.items()
    }
    return replace(language, limits={**language.limits, **whole})


def _column(rows: Matrix, name: str) -> Matrix:
    """Return the statistic of a limit; shape (documents, 1)."""
    return rows[:, [COLUMN[KEYS[name].measure]]]


def _measured(texts: Sequence[str], language: Language, tables: Characters) -> Matrix:
    """Measure the texts that have words; whether they are in the language is one of the statistics."""
    worded = [text for text in texts if not text.isspace() and text]
    identified = [identify_language(text, language) for text in worded]
    rows = Judge(language, characters=tables).judge(worded, identified).statistics
    return rows[rows[:, COLUMN["words"]] > 0]


def _quantile(name: str, values: Matrix, rate: float, widened: float = 0.0) -> float:
    """Return the limit that all but this share of the documents' source keeps, by each of its statistics."""
    is_least = name.startswith("min_")
    limits = [source_quantile(each, rate, largest=not is_least, widened=widened) for each in values.T]
    limit = min(limits) if is_least else max(limits)
    if name == "min_stop_words":
        return float(max(0, math.floor(limit)))
    limit = (math.floor(limit * SCALE) if is_least else math.ceil(limit * SCALE)) / SCALE
    # A tail may be drawn beyond what a share or a length can be.
    return min(1.0, max(0.0, limit)) if KEYS[name].type is Share else max(0.0, limit)


def _sparing(name: str, values: Matrix) -> float:
    if name.startswith(REPETITION):
        return min(_quantile(name, values, DROP_RATE), MOST_REPETITION)
    return _quantile(name, values, DROP_RATE, WIDENED)


def _lenient(name: str, values: Matrix, limits: Limits) -> float:
    """Return the published limit, or what spares own text; lengths and stop words are the language's alone."""
    if name == "min_stop_words":
        return min(_quantile(name, values, STRICT_RATES[-1]), 2)  # Gopher's
    learnt, general = _sparing(name, values), limits[name]
    if "length" in name:
        return learnt
    assert general is not None, name
    return min(general, learnt) if name.startswith("min_") else max(general, learnt)


def _min_words(lengths: Sequence[int], general: Limits) -> int:
    usual = int(general["min_words"] or 0)
    if len(lengths) < MIN_DOCUMENTS:
        return usual
    # Lengths are nearer to log-normal than to normal.
    least = source_quantile(np.log(np.maximum(lengths, 1)), DROP_RATE, largest=False)
    return max(1, min(usual, int(math.exp(least))))


class _Judge:
    """Shares of texts that limits keep; each text is identified and measured once."""

    def __init__(
        self, language: Language, tables: Characters, good: Sequence[str], noise: Mapping[str, Sequence[str]]
    ) -> None:
        self._language, self._tables = language, tables
        self._own = _measured(good, language, tables), len(good)
        self._noise = {
            place: (_measured([language.normalize(text) for text in texts], language, tables), len(texts))
            for place, texts in noise.items()
        }

    def _shares_kept(self, texts: Iterable[tuple[Matrix, int]], chosen: Mapping[str, float]) -> list[float]:
        judge = Judge(_with(self._language, chosen), characters=self._tables)
        return [judge.judge_statistics(rows).reasons.count(None) / max(1, total) for rows, total in texts]

    def drop_report(self, chosen: Mapping[str, float]) -> list[str]:
        """Say how much good text identification and each limit drop alone."""
        rows, _ = self._own
        dropped = {"identification": rows[:, COLUMN["language"]] < 1}
        for name, limit in sorted(chosen.items()):
            column = _column(rows, name)
            dropped[f"{name} {limit}"] = column < limit if name.startswith("min_") else column > limit
        return [f"{name}: drops {float(each.mean()):.2%}" for name, each in dropped.items()]

    def own_dropped(self, chosen: Mapping[str, float]) -> float:
        """Return the share of the good text that limits drop."""
        return 1 - self._shares_kept([self._own], chosen)[0]

    def noise_kept(self, chosen: Mapping[str, float]) -> dict[str, float]:
        """Return the share of each kind of noise that limits keep."""
        return dict(zip(self._noise, self._shares_kept(self._noise.values(), chosen), strict=True))


def _tightened(
    judge: _Judge, values: Mapping[str, Matrix], chosen: dict[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Tighten limits, that first which drops most noise for the own text that it costs, until little noise is kept."""
    report: list[str] = []
    excess, dropped = _excess(judge.noise_kept(chosen)), judge.own_dropped(chosen)
    most = max(MAX_OWN_DROPPED, dropped + MAX_COST)
    while excess > 0:
        best: tuple[float, dict[str, float], str] | None = None
        for name in values:
            for rate in STRICT_RATES:
                tried = chosen | {name: _quantile(name, values[name], rate)}
                cost = judge.own_dropped(tried)
                if tried == chosen or cost > most:
                    continue
                less = excess - _excess(judge.noise_kept(tried))
                gain = less / (max(0.0, cost - dropped) + DROP_RATE)
                if less > MIN_LESS and (best is None or gain > best[0]):
                    best = gain, tried, name
        if best is None:
            worst = max(judge.noise_kept(chosen).values())
            report.append(f"of some noise {worst:.0%} is kept: no limit that spares own text drops more")
            break
        _, chosen, name = best
        excess, dropped = _excess(judge.noise_kept(chosen)), judge.own_dropped(chosen)
        report.append(f"{name} is {chosen[name]:g}, tighter than its own text needs, because of the noise")
    return chosen, report


def _excess(noise_kept: Mapping[str, float]) -> float:
    """Sum the noise that is kept beyond what may be: a kind that no limit drops must not end the search."""
    return sum(max(0.0, share - MAX_NOISE_KEPT) for share in noise_kept.values())


def source_quantile(
    sample: Sequence[float] | npt.NDArray[np.float64], rate: float, *, largest: bool, widened: float = 0.0
) -> float:
    """Estimate the value beyond which this share of the source lies.

    Of n values another one lies beyond the most extreme with probability 1 / (n + 1). Where that is more than the
    rate asked for, the tail is taken for exponential: the distance from the median grows with the logarithm of the
    share beyond it, from .5.

    Args:
        sample: Values of the sample; at least one.
        rate: Share beyond the limit, below .25.
        largest: True for the upper tail.
        widened: Part of the distance from the median that is added to it.
    """
    seen = min(max(rate, 1 / (len(sample) + 1)), MOST_SEEN)
    edge, median = np.quantile(sample, [1 - seen if largest else seen, 0.5], method="weibull")
    further = math.log(0.5 / rate) / math.log(0.5 / seen)
    return float(median + (1 + widened) * further * (edge - median))
