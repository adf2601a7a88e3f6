"""Which letters beyond ASCII a language writes, by CLDR; `scripts/language_letters.py` makes the table."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "languages" / "letters.tsv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Letters of a language in both cases; empty where nobody has listed them."""

    own: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    """Those of foreign names and words."""


UNKNOWN = Letters()


@functools.cache
def _table() -> dict[str, tuple[str, str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {code: (own, others) for code, own, others in rows}


def letters_of(code: str, alphabet: str = "") -> Letters:
    """The letters of a language's id; of one that the table lacks, those of its alphabet."""
    own, others = _table().get(code, (alphabet, ""))
    return Letters(own=_both_cases(own), others=_both_cases(others))


def _both_cases(letters: Iterable[str]) -> frozenset[str]:
    # `ß` has a capital of two letters, and ASCII tells no language apart.
    each = {case for letter in letters for case in (letter, letter.upper())}
    return frozenset(letter for letter in each if len(letter) == 1 and letter > "\x7f")
