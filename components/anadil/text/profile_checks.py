"""Checks of a text against the profile of a language that was learnt from a sample."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anadil.text import ngram_profile, word_shapes
from anadil.text.language_data import Profile

MAX_ORDER = 8  # Longest n-grams of a pack. Our choice: longer ones are words.
TOPICAL = frozenset({"likelihood", "new_endings"})
"""Checks whose figures follow the kind of a text."""
AGAIN = "learn the pack again"


@dataclass(frozen=True, slots=True)
class _Tables:
    likelihoods: tuple[ngram_profile.Table, ...]
    """Tables of all n-grams together, own and others."""
    associations: tuple[ngram_profile.Table, ...]
    endings: word_shapes.Endings | None
    word_order: word_shapes.WordOrder | None


# A run of clean asks for the same few profiles a million times, and unpacking takes milliseconds.
@functools.lru_cache(maxsize=8)
def _tables(profile: Profile) -> _Tables:
    return _Tables(
        likelihoods=tuple(map(ngram_profile.unpack_table, (profile.own, *profile.others))),
        associations=tuple(map(ngram_profile.unpack_table, profile.associations)),
        endings=word_shapes.unpack_endings(profile.endings) if profile.endings else None,
        word_order=word_shapes.WordOrder.unpack(profile.word_order) if profile.word_order else None,
    )


def check_profile(profile: Profile) -> None:
    """Check that a profile's tables can be read, and that each has a limit of each length."""
    for name in ("own", "others", "associations"):
        value = getattr(profile, name)
        for packed in (value,) if isinstance(value, str) else value:
            _check_unpacks(name, ngram_profile.unpack_table, packed)
    if profile.endings:
        _check_unpacks("endings", word_shapes.unpack_endings, profile.endings)
    if profile.word_order:
        _check_unpacks("word_order", word_shapes.WordOrder.unpack, profile.word_order)
    # A text shorter than all of them counts as in the language: without any, every text would.
    lengths = profile.min_chars
    if not lengths or lengths[0] < 1 or any(second <= first for first, second in itertools.pairwise(lengths)):
        raise ValueError(f"min_chars are {lengths}, not ascending numbers from 1; {AGAIN}")
    if any(not 0 <= share <= 1 for share in profile.max_new_endings):
        raise ValueError(f"max_new_endings are {profile.max_new_endings}, not shares from 0 to 1; {AGAIN}")
    limits: dict[str, tuple[float, ...]] = {"min_likelihoods": profile.min_likelihoods}
    limits |= {"min_margins": profile.min_margins} if profile.others else {}
    limits |= {"min_associations": profile.min_associations} if profile.associations else {}
    limits |= {"min_word_order": profile.min_word_order} if profile.word_order else {}
    limits |= {"max_new_endings": profile.max_new_endings} if profile.endings else {}
    limits |= {"max_inner_signs": profile.max_inner_signs} if profile.max_inner_signs else {}
    for name, given in limits.items():
        if len(given) != len(profile.min_chars):
            raise ValueError(f"{name} has {len(given)} values, min_chars {len(profile.min_chars)}")
    if len(profile.associations) not in {0, len(ngram_profile.ASSOCIATED)}:
        raise ValueError(
            f"associations has {len(profile.associations)} tables, not {len(ngram_profile.ASSOCIATED)}"
        )
    if not profile.orders or min(profile.orders) < 1 or max(profile.orders) > MAX_ORDER:
        raise ValueError(f"orders are {profile.orders}, not of 1 to {MAX_ORDER}")


def _check_unpacks(name: str, unpack: Callable[[str], object], packed: str) -> None:
    try:
        unpack(packed)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; {AGAIN}") from None


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """Figure of a text, and the profile's limit at its length."""

    name: str
    value: float
    limit: float
    is_least: bool = True
    """True if the limit is the least value, False if it is the most."""

    @property
    def passes(self) -> bool:
        """A value that could not be measured (NaN) breaks no limit."""
        return not (self.value < self.limit if self.is_least else self.value > self.limit)


def profile_checks(text: str, profile: Profile) -> Iterator[ProfileCheck]:
    """Checks that decide, the cheapest first. A text that is too short to tell has none."""
    # Packs without associations were made when marks were no letters.
    letters = ngram_profile.letters_of(text, marks=bool(profile.associations))
    place = _place(letters, profile)
    if place < 0:
        return
    tables = _tables(profile)
    ngrams = ngram_profile.buckets(
        ngram_profile.codes_of(letters), max(*profile.orders, len(ngram_profile.ASSOCIATED))
    )
    likelihood, margin = ngram_profile.score_letters(ngrams, tables.likelihoods, profile.orders)
    yield ProfileCheck("likelihood", float(likelihood), profile.min_likelihoods[place])
    if profile.others:
        yield ProfileCheck("margin", float(margin), profile.min_margins[place])
    if tables.associations:
        rarity = ngram_profile.score_association(ngrams, tables.associations, profile.least_rarity)
        yield ProfileCheck("association", float(rarity), profile.min_associations[place])
    small = word_shapes.small_letters_of(text) if tables.endings is not None else ""
    if tables.endings is not None and (place_of_small := _place(small, profile)) >= 0:
        share, most = (
            word_shapes.score_endings(small, tables.endings),
            profile.max_new_endings[place_of_small],
        )
        yield ProfileCheck("new_endings", share, most, is_least=False)
    if tables.word_order:
        yield ProfileCheck("word_order", tables.word_order.score(letters), profile.min_word_order[place])
    if profile.max_inner_signs:
        signs = float(word_shapes.inner_signs(ngram_profile.codes_of(text)))
        yield ProfileCheck("inner_signs", signs, profile.max_inner_signs[place], is_least=False)
        yield ProfileCheck(
            "inner_capitals", word_shapes.inner_capitals(text), profile.max_inner_capitals, is_least=False
        )
    if profile.min_distinct_words:
        yield ProfileCheck("distinct_words", word_shapes.distinct_words(letters), profile.min_distinct_words)


def is_likely(text: str, profile: Profile, *, is_sure: bool = False) -> bool:
    """Return True if a normalized text is of the profile's language, or too short to tell.

    If something else `is_sure` of the language, `TOPICAL` checks decide nothing: they would say that the text is of another
    kind than the sample. Checks of damage decide as ever.
    """
    checks = profile_checks(text, profile)
    return all(check.passes or (is_sure and check.name in TOPICAL) for check in checks)


def _place(letters: str, profile: Profile) -> int:
    """Index of the limits that hold for a text; -1: it is too short for any."""
    return sum(len(letters) >= least for least in profile.min_chars) - 1
