"""Which documents are dropped, and why: a table of rules, all of them evaluated for each document.

Rules stand from cheap to dear to explain, and the first enforced one that a document breaks is its reason. Language
comes first, so that the later limits, which were fitted to the language, judge its text only. A rule in report mode is
counted and drops nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.characters import Characters, characters_of
from anadil.clean.kernels.columns import Column
from anadil.clean.kernels.ng_words import NgWords
from anadil.clean.kernels.statistics import Matrix, Statistics
from anadil.recipe.filter_rules import Mode, RuleName, Rules
from anadil.text.filter_limits import FilterLimits
from anadil.text.language import Language

Floats = npt.NDArray[np.float64]

MIN_JUDGED_CHARS = 20
"""Nobody can tell the language of less; that is a matter of length."""
MAX_WORD_CHARS = 1_000
"""A longer word is data. Source: C4, arXiv:1910.10683, as datatrove has it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A limit of a statistic."""

    column: Column
    limit: str | float
    """Key of the limits, or a number that nobody sets."""
    is_least: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits that go by one name, which is the reason of what breaks one of them."""

    name: RuleName
    checks: tuple[Check, ...]
    mode: Mode = "enforce"
    """Unless the recipe's `clean.modes` says otherwise."""


def _least(column: Column, limit: str | float) -> Check:
    return Check(column, limit, is_least=True)


def _most(column: Column, limit: str | float) -> Check:
    return Check(column, limit, is_least=False)


def _orders(prefix: str, orders: range, suffix: str) -> tuple[Check, ...]:
    """Checks of n-grams, one for each order; their statistics and limits have the same names."""
    names = (f"{prefix}_{order}{suffix}" for order in orders)
    return tuple(_most(Column[name.upper()], f"max_{name}") for name in names)


RULES = (
    Rule("empty", (_least(Column.WORDS, 1),)),
    Rule("language", (_least(Column.LANGUAGE, 1),)),
    Rule("mixed", (_most(Column.FOREIGN, "max_foreign"),)),
    Rule(
        "short",
        (
            _least(Column.WORDS, "min_words"),
            _least(Column.CHARS, "min_chars"),
            _least(Column.JAPANESE_CHARS, "min_japanese_chars"),
        ),
    ),
    Rule("script", (_least(Column.SCRIPT, "min_script"),)),
    Rule("spelling", (_least(Column.OWN_LETTERS, "min_own_letters"),)),
    Rule("long", (_most(Column.WORDS, "max_words"),)),
    # First of the word rules, because odd lengths are a consequence of this damage.
    Rule("isolated", (_most(Column.ISOLATED, "max_isolated"),)),
    Rule(
        "word_length",
        (
            _least(Column.MEAN_WORD_LENGTH, "min_mean_word_length"),
            _most(Column.MEAN_WORD_LENGTH, "max_mean_word_length"),
            _most(Column.LONGEST_WORD, MAX_WORD_CHARS),
        ),
    ),
    Rule("alpha", (_least(Column.ALPHA_WORDS, "min_alpha_words"),)),
    Rule("stop_words", (_least(Column.STOP_WORDS, "min_stop_words"),)),
    Rule("symbols", (_most(Column.HASHES, "max_hashes"), _most(Column.ELLIPSES, "max_ellipses"))),
    Rule("bullet_lines", (_most(Column.BULLET_LINES, "max_bullet_lines"),)),
    Rule("ellipsis_lines", (_most(Column.ELLIPSIS_LINES, "max_ellipsis_lines"),)),
    Rule("line_ends", (_least(Column.LINE_ENDS, "min_line_ends"),)),
    Rule("short_lines", (_most(Column.SHORT_LINES, "max_short_lines"),)),
    Rule("new_lines", (_most(Column.NEW_LINES, "max_new_lines"),)),
    Rule(
        "words_soup",
        (
            _least(Column.SENTENCE_SIGNS, "min_sentence_signs"),
            _most(Column.BROKEN_SENTENCES, "max_broken_sentences"),
        ),
    ),
    Rule("c4_lines", (_least(Column.C4_LINES, "min_c4_lines"),), "report"),
    Rule("c4_sentences", (_least(Column.C4_SENTENCES, "min_c4_sentences"),), "report"),
    Rule("curly_brackets", (_most(Column.CURLY_BRACKETS, "max_curly_brackets"),), "report"),
    Rule("lorem_ipsum", (_most(Column.LOREM_IPSUM, "max_lorem_ipsum"),), "report"),
    Rule("long_lines", (_least(Column.LONG_LINES, "min_long_lines"),), "report"),
    Rule(
        "kana",
        (
            _least(Column.JAPANESE, "min_japanese"),
            _least(Column.HIRAGANA, "min_hiragana"),
            _most(Column.KATAKANA, "max_katakana"),
        ),
    ),
    Rule(
        "sentence_length",
        (
            _most(Column.WORDS_PER_SENTENCE, "max_words_per_sentence"),
            _least(Column.MEAN_SENTENCE, "min_mean_sentence"),
            _most(Column.MEAN_SENTENCE, "max_mean_sentence"),
            _most(Column.LONGEST_SENTENCE, "max_longest_sentence"),
        ),
    ),
    Rule("ellipsis_sentences", (_most(Column.ELLIPSIS_SENTENCES, "max_ellipsis_sentences"),)),
    Rule("duplicate_lines", (_most(Column.DUPLICATE_LINES, "max_duplicate_lines"),)),
    Rule("duplicate_line_chars", (_most(Column.DUPLICATE_LINE_CHARS, "max_duplicate_line_chars"),)),
    Rule(
        "duplicate_paragraphs",
        (
            _most(Column.DUPLICATE_PARAGRAPHS, "max_duplicate_paragraphs"),
            _most(Column.DUPLICATE_PARAGRAPH_CHARS, "max_duplicate_paragraph_chars"),
        ),
    ),
    Rule(
        "duplicate_sentences",
        (
            _most(Column.DUPLICATE_SWALLOW_LINES, "max_duplicate_sentences"),
            _most(Column.DUPLICATE_SWALLOW_LINE_CHARS, "max_duplicate_sentence_chars"),
            _most(Column.DUPLICATE_SENTENCES, "max_duplicate_sentences"),
            _most(Column.DUPLICATE_SENTENCE_CHARS, "max_duplicate_sentence_chars"),
        ),
    ),
    Rule("top_ngram", (_most(Column.TOP_2GRAM, "max_top_ngram"), *_orders("top", range(3, 5), "gram"))),
    Rule(
        "duplicate_ngrams",
        (
            _most(Column.DUPLICATE_5GRAMS, "max_duplicate_ngrams"),
            *_orders("duplicate", range(6, 11), "grams"),
        ),
    ),
    Rule("top_char_ngram", _orders("top_char", range(2, 5), "gram")),
    Rule("duplicate_char_ngrams", _orders("duplicate_char", range(5, 11), "grams")),
    Rule("ng_words", (_most(Column.NG_WORDS, "max_ng_words"),)),
    Rule("quality", (_least(Column.QUALITY, "min_quality"),)),
)
CHECKS = tuple(check for rule in RULES for check in rule.checks)
FIRST_CHECKS = np.cumsum([0, *(len(rule.checks) for rule in RULES)])[:-1]


class Identified(Protocol):
    """What the identifier says of a text."""

    @property
    def is_language(self) -> bool:
        """Whether it is in the language."""
        ...

    @property
    def is_reliable(self) -> bool:
        """Whether there was enough text to be sure."""
        ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules say of a document."""

    statistics: Floats
    """In the order of `STATISTICS`."""
    failed: tuple[RuleName, ...]
    """Rules that it breaks, those in report mode too, in order."""
    reason: RuleName | None
    """The first enforced one of them; None if the document is kept."""
    value: float | None
    """Of the statistic that broke the rule."""
    limit: float | None


class Judgements(Sequence[Judgement]):
    """What the rules say of a batch; `[index]` for one document."""

    def __init__(self, statistics: Matrix, broken: npt.NDArray[np.bool_], judge: "Judge") -> None:
        self.statistics = statistics
        self.failed: npt.NDArray[np.bool_] = np.logical_or.reduceat(broken, FIRST_CHECKS, axis=1)
        """Shape (documents, rules), in the order of `RULES`."""
        self._broken, self._judge = broken, judge
        enforced = self.failed & judge.is_enforced
        first = np.where(enforced.any(axis=1), enforced.argmax(axis=1), -1)
        self.reasons: list[RuleName | None] = [
            RULES[index].name if index >= 0 else None for index in first.tolist()
        ]
        """Why each document is dropped; None for those that are kept."""
        self._first = first

    def __len__(self) -> int:
        return len(self.reasons)

    @cached_property
    def _names(self) -> list[list[RuleName]]:
        """Rules that each document breaks: one look at the matrix instead of one for each document."""
        names: list[list[RuleName]] = [[] for _ in self.reasons]
        documents, rules = np.nonzero(self.failed)
        for document, rule in zip(documents.tolist(), rules.tolist(), strict=True):
            names[document].append(RULES[rule].name)
        return names

    def __getitem__(self, index: int) -> Judgement:  # type: ignore[override]  # no slices
        """The judgement of one document."""
        row = self.statistics[index]
        value, limit = None, None
        if self.reasons[index] is not None:
            start = FIRST_CHECKS[self._first[index]]
            check = start + int(self._broken[index, start:].argmax())
            value, limit = float(row[CHECKS[check].column]), float(self._judge.limits[check])
        return Judgement(row, tuple(self._names[index]), self.reasons[index], value, limit)

    def __iter__(self) -> Iterator[Judgement]:
        return (self[index] for index in range(len(self)))


class Judge:
    """Measures texts and compares them with the limits of a language and a recipe."""

    def __init__(
        self,
        language: Language,
        rules: Rules | None = None,
        modes: Mapping[RuleName, Mode] | None = None,
        ng_words: Iterable[str] = (),
        characters: Characters | None = None,
    ) -> None:
        """Take the limits of a language, a recipe's in their place.

        Args:
            language: Of the texts.
            rules: Limits in place of the language's own.
            modes: Which rules drop, and which only report, in place of the table's.
            ng_words: Entries of the NG lists.
            characters: The language's tables, where they exist already.
        """
        own = self.characters = characters or characters_of(language)
        """Tables that `MinHash` takes, too."""
        modes = modes or {}
        self.limits = limits_of_checks(language, rules or Rules())
        self.is_enforced = np.array([modes.get(rule.name, rule.mode) == "enforce" for rule in RULES])
        self._min_words = limits_of(language, rules or Rules()).min_words
        self._statistics = Statistics(language, own)
        words = list(ng_words)
        self._ng_words = NgWords(words, language, own) if words else None
        self._columns = np.array([check.column for check in CHECKS])
        self._signs = np.array([-1.0 if check.is_least else 1.0 for check in CHECKS])

    def judge(
        self,
        texts: Sequence[str],
        found: Sequence[Identified] | None = None,
        foreign: Sequence[float] | None = None,
        quality: Sequence[float] | None = None,
    ) -> Judgements:
        """Judge normalized texts; a batch of hundreds costs each the least.

        Args:
            texts: Normalized.
            found: What the identifier says of each; None takes all for texts of the language.
            foreign: Share of each that is in another language.
            quality: Score of each.
        """
        rows = self._statistics.measure(texts)
        if found is not None:
            rows[:, Column.LANGUAGE] = self._language_column(rows, found)
        for column, values in ((Column.FOREIGN, foreign), (Column.QUALITY, quality)):
            if values is not None:
                rows[:, column] = values
        if self._ng_words is not None and len(texts):
            rows[:, Column.NG_WORDS] = self._ng_words.shares(texts)
        return self.judge_statistics(rows)

    def judge_statistics(self, rows: Matrix) -> Judgements:
        """Judge documents by what was measured of them before."""
        # A limit of nan is none, and a statistic of nan breaks none.
        broken = rows[:, self._columns] * self._signs > self.limits * self._signs
        return Judgements(rows, broken, self)

    def _language_column(self, rows: Matrix, found: Sequence[Identified]) -> Floats:
        """1 for what is in the language, or too short to tell: then its length is the reason."""
        is_language = np.array([each.is_language for each in found], dtype=bool)
        is_reliable = np.array([each.is_reliable for each in found], dtype=bool)
        is_judged = (rows[:, Column.WORDS] >= self._min_words) | (
            is_reliable & (rows[:, Column.CHARS] >= MIN_JUDGED_CHARS)
        )
        return (is_language | ~is_judged).astype(np.float64)


def limits_of(language: Language, rules: Rules) -> FilterLimits:
    """The language's own limits, with those that the recipe names in their place."""
    named = {key: value for key, value in rules.model_dump().items() if value is not None}
    own = {key: getattr(language.limits, key) for key in FilterLimits.__dataclass_fields__}
    return FilterLimits(**(own | named))


def limits_of_checks(language: Language, rules: Rules) -> Floats:
    """The same in the order of `CHECKS`; nan where there is none. It needs no compiled code."""
    limits = limits_of(language, rules)
    named: dict[str, float | None] = {key: getattr(limits, key) for key in FilterLimits.__dataclass_fields__}
    named["min_own_letters"] = language.min_own_letters
    values = [named[check.limit] if isinstance(check.limit, str) else check.limit for check in CHECKS]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
