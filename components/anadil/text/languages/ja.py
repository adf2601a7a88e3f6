"""Japanese: words without spaces, NFKC, punctuation, footers. The pack holds the rest."""

import re

from anadil.text.japanese import compatible, remove_footer, unify_punctuation
from anadil.text.unicode_repair import apply_until_stable, is_sound, normalize_spaces, repair_characters

RUNS = re.compile(
    "[\u3005\u3400-\u4dbf\u4e00-\u9fff]+|[\u3041-\u309f]+|[\u30a1-\u30ff]+|[^\\W\\d_\u3005\u3041-\u30ff\u3400-\u9fff]+"
    "|\\d+"
)
"""Kanji, hiragana, katakana, other letters, digits: each maximal run is a word; signs are none.

A run of kanji and the okurigana after it are two words: to join them needs a dictionary.
"""

WORD_UNIT = "a run of kanji, of hiragana, of katakana, of other letters or of digits"


def words(text: str) -> list[str]:
    """Maximal runs of one class of characters; there are no spaces to go by."""
    return RUNS.findall(text)


def normalize(text: str) -> str:
    """NFKC but for raised figures and fractions, one style of punctuation, no footer, no invisible characters, tidy spaces."""
    return apply_until_stable(_normalize_once, text)


def _normalize_once(text: str) -> str:
    sound = is_sound(text)
    unified = unify_punctuation(text if sound else repair_characters(text))
    composed = compatible(unified)
    # NFKC may make spaces of what was none.
    return remove_footer(composed if sound and composed == unified else normalize_spaces(composed))


def is_script(letter: str) -> bool:
    """True for kana and kanji."""
    return "\u3005" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter >= "\U00020000"
