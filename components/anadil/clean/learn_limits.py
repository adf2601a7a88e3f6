"""Limits of the document filters, learnt of good text and tried on noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anadil.clean.filters import (
    duplicate_line_share,
    duplicate_ngram_share,
    top_ngram_share,
)
from anadil.clean.language_id import identify_language, letter_shares
from anadil.text.language import Language
from anadil.text.language_pack import GENERAL_LIMITS, Limits

DROP_RATE = 0.001
"""Of own text, for each limit that is widened to spare it."""
STRICT_RATES = (0.001, 0.002, 0.004)
"""To which a limit may be tightened where noise demands it."""
MAX_OWN_DROPPED = 0.02
"""Of the text set aside, by all rules together; the aim is 3 % of text never seen."""
MAX_NOISE_KEPT = 0.1
WIDENED = 0.3
"""Of the distance from the median to the quantile, added to it."""
MIN_DOCUMENTS = 200
"""Fewer do not say how short a document may be."""
STRIPPED = ".,;:!?\"'()«»“”"
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
    told: list[str]


def _stop_words(_: str, words: Sequence[str], language: Language) -> float:
    return len({language.fold(word).strip(STRIPPED) for word in set(words)} & language.stop_words)


def _isolated(_: str, words: Sequence[str], language: Language) -> float:
    return sum(word in language.stray_letters for word in words) / len(words)


MEASURES: dict[str, tuple[int, Callable[[str, Sequence[str], Language], float]]] = {
    "min_mean_word_length": (-1, lambda _, words, __: sum(map(len, words)) / len(words)),
    "max_mean_word_length": (1, lambda _, words, __: sum(map(len, words)) / len(words)),
    "min_alpha_words": (-1, lambda _, words, __: sum(any(map(str.isalpha, w)) for w in words) / len(words)),
    "min_stop_words": (-1, _stop_words),
    "max_duplicate_lines": (1, lambda text, _, __: duplicate_line_share(text)),
    "max_top_ngram": (1, lambda _, words, __: top_ngram_share(words)),
    "max_duplicate_ngrams": (1, lambda _, words, __: duplicate_ngram_share(words)),
    "max_isolated": (1, _isolated),
    "min_script": (-1, lambda text, _, language: letter_shares(text, language)[0]),
}
"""Limit -> 1 for a largest, -1 for a least one, and what it is of."""


def learn_limits(
    language: Language,
    fit: Sequence[str],
    aside: Sequence[str],
    noise: Mapping[str, Sequence[str]],
    lengths: Sequence[int],
) -> LearntLimits:
    """Learn them.

    Args:
        language: With its identification and words.
        fit: Good text that they are fitted on.
        aside: Good text that losses are measured on.
        noise: File or kind -> text that is to be dropped.
        lengths: Words of each document of the sample.
    """
    values = _measured(fit, language)
    chosen = {name: _lenient(name, column) for name, column in values.items()}
    chosen["min_words"] = _min_words(lengths)
    chosen["max_words"] = max(GENERAL_LIMITS.max_words, *lengths)
    judge = _Judge(language, aside, noise)
    chosen, told = _tightened(judge, values, chosen)
    return LearntLimits(
        limits=_limits(chosen),
        own_dropped=judge.own_dropped(chosen),
        noise_kept=judge.noise_kept(chosen),
        told=[*judge.told(chosen), *told],
    )


def _limits(chosen: Mapping[str, float]) -> Limits:
    return Limits.model_validate(chosen)  # counts are whole numbers already


def _measured(texts: Sequence[str], language: Language) -> dict[str, Values]:
    pairs = [(text, words) for text in texts if (words := language.words(text))]
    return {
        name: np.array([measure(text, words, language) for text, words in pairs])
        for name, (_, measure) in MEASURES.items()
    }


def _quantile(name: str, column: Values, rate: float, widened: float = 0.0) -> float:
    sign = MEASURES[name][0]
    edge = float(np.quantile(column, 1 - rate if sign > 0 else rate))
    moved = edge + widened * (edge - float(np.median(column)))
    if name == "min_stop_words":
        return float(max(0, math.floor(moved)))
    scaled = moved * 10**DIGITS
    rounded: float = (math.ceil(scaled) if sign > 0 else math.floor(scaled)) / 10**DIGITS
    return rounded if "length" in name else min(1.0, max(0.0, rounded))


def _lenient(name: str, column: Values) -> float:
    """The published limit, or what spares own text; lengths and stop words are the language's alone."""
    learnt = _quantile(name, column, DROP_RATE, WIDENED)
    if "length" in name:
        return learnt
    if name == "min_stop_words":
        return min(_quantile(name, column, STRICT_RATES[-1]), 2)  # Gopher's
    general = 0.05 if name == "max_isolated" else float(getattr(GENERAL_LIMITS, name))
    return max(general, learnt) if MEASURES[name][0] > 0 else min(general, learnt)


def _min_words(lengths: Sequence[int]) -> int:
    if len(lengths) < MIN_DOCUMENTS:
        return GENERAL_LIMITS.min_words
    return max(1, min(GENERAL_LIMITS.min_words, int(np.quantile(lengths, DROP_RATE))))


class _Judge:
    """Which texts some limits keep; each text is identified and measured once."""

    def __init__(self, language: Language, own: Sequence[str], noise: Mapping[str, Sequence[str]]) -> None:
        self._language = language
        self._own = self._measured(own)
        self._noise = {
            place: self._measured([language.normalize(text) for text in texts])
            for place, texts in noise.items()
        }

    def _measured(self, texts: Sequence[str]) -> dict[str, Values]:
        """The texts' measures; without words all limits fail, as those of another language do."""
        language = self._language
        values = _measured(texts, language)
        worded = [(text, words) for text in texts if (words := language.words(text))]
        values["words"] = np.array([len(words) for _, words in worded])
        values["identified"] = np.array([identify_language(text, language).is_language for text, _ in worded])
        values["total"] = np.array([len(texts)])
        return values

    def _kept(self, values: Mapping[str, Values], chosen: Mapping[str, float]) -> float:
        kept = values["identified"].astype(bool)
        kept &= (values["words"] >= chosen["min_words"]) & (values["words"] <= chosen["max_words"])
        for name, (sign, _) in MEASURES.items():
            kept &= sign * values[name] <= sign * chosen[name]
        return float(kept.sum() / max(1, values["total"][0]))

    def told(self, chosen: Mapping[str, float]) -> list[str]:
        """What identification and each limit alone drop of the good text."""
        values = self._own
        passed = {"identification": values["identified"].astype(bool)}
        passed["min_words"] = values["words"] >= chosen["min_words"]
        passed["max_words"] = values["words"] <= chosen["max_words"]
        for name, (sign, _) in MEASURES.items():
            passed[name] = sign * values[name] <= sign * chosen[name]
        return [
            f"{name} {chosen.get(name, '')}".strip() + f": drops {1 - float(ok.mean()):.2%}"
            for name, ok in passed.items()
        ]

    def own_dropped(self, chosen: Mapping[str, float]) -> float:
        """Share of the good text."""
        return 1 - self._kept(self._own, chosen)

    def noise_kept(self, chosen: Mapping[str, float]) -> dict[str, float]:
        """Share of each kind."""
        return {place: self._kept(values, chosen) for place, values in self._noise.items()}


def _tightened(
    judge: _Judge, values: Mapping[str, Values], chosen: dict[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Tighten, one limit at a time, that which drops most noise, until little enough is kept."""
    told: list[str] = []
    kept = _worst(judge.noise_kept(chosen))
    while kept > MAX_NOISE_KEPT:
        best: tuple[float, str, float] | None = None
        for name in MEASURES:
            for rate in STRICT_RATES:
                value = _quantile(name, values[name], rate)
                tried = chosen | {name: value}
                if value == chosen[name] or judge.own_dropped(tried) > MAX_OWN_DROPPED:
                    continue
                after = _worst(judge.noise_kept(tried))
                if best is None or after < best[0]:
                    best = after, name, value
        if best is None or best[0] >= kept:
            told.append(f"of some noise {kept:.0%} is kept: no limit that spares own text drops more")
            break
        kept = best[0]
        chosen = chosen | {best[1]: best[2]}
        told.append(f"{best[1]} is {best[2]:g}, tighter than its own text needs, because of the noise")
    return chosen, told


def _worst(kept: Mapping[str, float]) -> float:
    return max(kept.values(), default=0.0)
