"""Judge documents by every rule of `text.filter_rules`.

The first enforced rule that a document breaks is its reason. A rule in report mode is counted and drops nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.characters import Characters, characters_of
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.ng_words import NgWords
from anadil.clean.kernels.statistics import Matrix, Statistics
from anadil.recipe.filter_rules import NO_RULES, Rules, RulesOrNone
from anadil.text.filter_rules import MODES, RULES, Limits, Mode, RuleName
from anadil.text.language_data import Language
from anadil.text.language_id import IdentifiedLanguage

Floats = npt.NDArray[np.float64]

MIN_JUDGED_CHARS = 20
"""Shorter texts do not tell their language; that is a matter of length."""
EMPTY = "empty"
"""Rule that judges where a recipe wants none: a text without a word cannot be trained on."""
RULE_NAMES = tuple(MODES)
FIRST_RULES = [next(place for place, rule in enumerate(RULES) if rule.name == name) for name in RULE_NAMES]
COLUMNS = np.array([COLUMN[rule.measure] for rule in RULES])
SIGNS = np.array([-1.0 if rule.is_least else 1.0 for rule in RULES])


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of the rules on a document."""

    statistics: Floats
    """In the order of `STATISTICS`."""
    failed: tuple[RuleName, ...]
    """Rules that it breaks, in report mode too, in order."""
    reason: RuleName | None
    """The first enforced one of them; None if the document is kept."""
    value: float | None
    limit: float | None


class Judgements(Sequence[Judgement]):
    """The verdicts on a batch; `[index]` for one document."""

    def __init__(self, statistics: Matrix, broken: npt.NDArray[np.bool_], judge: "Judge") -> None:
        self.statistics = statistics
        self._failed: npt.NDArray[np.bool_] = np.logical_or.reduceat(broken, FIRST_RULES, axis=1)
        self._broken, self._judge = broken, judge
        enforced = self._failed & judge.is_enforced
        self._first = np.where(enforced.any(axis=1), enforced.argmax(axis=1), -1)
        self.reasons: list[RuleName | None] = [
            RULE_NAMES[index] if index >= 0 else None for index in self._first.tolist()
        ]
        """Reason for each document that is dropped; None for the others."""

    def __len__(self) -> int:
        return len(self.reasons)

    @cached_property
    def _names(self) -> list[list[RuleName]]:
        # One look at the matrix instead of one for each document.
        names: list[list[RuleName]] = [[] for _ in self.reasons]
        documents, rules = np.nonzero(self._failed)
        for document, rule in zip(documents.tolist(), rules.tolist(), strict=True):
            names[document].append(RULE_NAMES[rule])
        return names

    def __getitem__(self, index: int) -> Judgement:  # type: ignore[override]  # no slices
        row = self.statistics[index]
        value, limit = None, None
        if self.reasons[index] is not None:
            start = FIRST_RULES[self._first[index]]
            broken = start + int(self._broken[index, start:].argmax())
            value, limit = float(row[COLUMNS[broken]]), float(self._judge.limits[broken])
        return Judgement(row, tuple(self._names[index]), self.reasons[index], value, limit)


class Judge:
    """Measurement of texts, compared with the limits of a language and a recipe."""

    def __init__(
        self, language: Language, rules: RulesOrNone | None = None,
        modes: Mapping[RuleName, Mode] | None = None, ng_words: Iterable[str] = (),
        characters: Characters | None = None,
    ) -> None:  # fmt: skip
        """Take the limits of a language, a recipe's in their place; `characters` are of a language with other limits alone."""
        rules, modes = rules or Rules(), modes or {}
        self.limits = limits_of_rules(language, rules)
        self.is_enforced = np.array([modes.get(name, mode) == "enforce" for name, mode in MODES.items()])
        self._min_words = limits_of(language, rules)["min_words"] or 0
        self._language, self._characters = language, characters
        words = list(ng_words)
        self._ng_words = NgWords(words, characters or characters_of(language)) if words else None

    @cached_property
    def _statistics(self) -> Statistics:
        # Learning a language tries thousands of limits on rows that are measured already: tables cost most of each.
        return Statistics(self._language, self._characters)

    def judge(
        self, texts: Sequence[str], identified: Sequence[IdentifiedLanguage] | None = None,
        foreign: Sequence[float] | None = None, quality: Sequence[float] | None = None,
    ) -> Judgements:  # fmt: skip
        """Judge normalized texts; a batch of hundreds costs each the least.

        Without `identified`, all are taken for texts of the language.
        """
        rows = self._statistics.measure(texts)
        if identified is not None:
            is_language = np.array([each.is_language for each in identified], dtype=bool)
            is_reliable = np.array([each.is_reliable for each in identified], dtype=bool)
            is_long = rows[:, COLUMN["chars"]] >= MIN_JUDGED_CHARS
            is_judged = (rows[:, COLUMN["words"]] >= self._min_words) | (is_reliable & is_long)
            # A text too short to identify passes here: `short` is the reason that it gets.
            rows[:, COLUMN["language"]] = is_language | ~is_judged
        for name, values in (("foreign", foreign), ("quality", quality)):
            if values is not None:
                rows[:, COLUMN[name]] = values
        if self._ng_words is not None and len(texts):
            rows[:, COLUMN["ng_words"]] = self._ng_words.shares(texts)
        return self.judge_statistics(rows)

    def judge_statistics(self, rows: Matrix) -> Judgements:
        """Judge documents by statistics that were measured before."""
        # A limit of nan is none, and a statistic of nan breaks none.
        broken = rows[:, COLUMNS] * SIGNS > self.limits * SIGNS
        return Judgements(rows, broken, self)


def limits_of(language: Language, rules: RulesOrNone) -> Limits:
    """Return the language's own limits, with the recipe's in their place."""
    if rules == NO_RULES:
        return dict.fromkeys(language.limits)
    return {**language.limits, **{key: value for key, value in rules if value is not None}}


def limits_of_rules(language: Language, rules: RulesOrNone) -> Floats:
    """Return the limits in the order of `RULES`; nan where there is none. It needs no compiled code."""
    if rules == NO_RULES:
        return np.array([rule.default if rule.name == EMPTY else np.nan for rule in RULES], dtype=np.float64)
    named = {**limits_of(language, rules), "min_own_letters": language.min_own_letters}
    values = [rule.default if rule.set_in == "nowhere" else named[rule.limit] for rule in RULES]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
