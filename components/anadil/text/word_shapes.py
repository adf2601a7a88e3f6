"""Signs of damaged and made-up text in any language: signs and capitals within words, and few words again and again.

A scan read badly has figures and signs where letters were. Pages made for search engines repeat a handful of words in
ever new orders, so that no line and no run of words is a duplicate. Both are measured against the language's own text,
since some write apostrophes, colons or capitals within words.
"""

import functools
import math
import sys
import unicodedata

import numpy as np
import numpy.typing as npt

from anadil.text.ngram_profile import code_point_kinds, word_buckets
from anadil.text.word_endings import is_capital

WINDOW = 128
"""Words of which the distinct ones are counted: the share falls with the length of a text, so windows of one length are compared."""
MIN_LETTERS = 320
"""Least letters of a text that is judged by its signs and capitals: in a shorter one, one address is as much."""
USUAL = " \n\t\r-_/:@=&#.,;()[]<>{}'\"\u02bc"
"""Blanks and ASCII signs that words, addresses and code have within. All punctuation beyond ASCII is usual: some scripts put no
blank behind it, or write it within words."""
BEYOND_ASCII = range(0x80, 0x20000)


@functools.cache
def is_usual() -> npt.NDArray[np.bool_]:
    """True for each code point that may be between letters."""
    usual = np.zeros(sys.maxunicode + 1, np.bool_)
    usual[[ord(each) for each in USUAL]] = True
    usual[[code for code in BEYOND_ASCII if unicodedata.category(chr(code))[0] in "PZ"]] = True
    return usual


def inner_signs(text: str) -> float:
    """Figures and unusual signs between two letters, for each letter of a text."""
    codes, is_letter = _letters(text)
    between = is_letter[:-2] & ~is_letter[1:-1] & is_letter[2:] & ~is_usual()[codes[1:-1]]
    return float(between.sum()) / max(1, int(is_letter.sum()))


def inner_capitals(text: str) -> float:
    """Capitals behind small letters, for each letter; NaN of a text of few letters, which is more than no limit."""
    codes, is_letter = _letters(text)
    num_letters = int(is_letter.sum())
    if num_letters < MIN_LETTERS:
        return math.nan
    capitals = is_capital()[codes]
    return float((is_letter[:-1] & ~capitals[:-1] & capitals[1:]).sum()) / num_letters


def _letters(text: str) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """Code points, and whether each is a letter."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    return codes, code_point_kinds()[codes] > 0


def distinct_words(letters: str) -> float:
    """Mean share of distinct words in windows of a text; NaN of one shorter than a window, which is less than no limit.

    Args:
        letters: `letters_of` a text.
    """
    words = word_buckets(letters)
    num_windows = len(words) // WINDOW
    if not num_windows:
        return math.nan
    windows = np.sort(words[: num_windows * WINDOW].reshape(num_windows, WINDOW), axis=1)
    return float((1 + (np.diff(windows, axis=1) > 0).sum(axis=1)).mean()) / WINDOW
