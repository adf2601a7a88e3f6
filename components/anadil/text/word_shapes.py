"""What damaged and made-up text shows whatever its language: signs within words, and few words again and again.

A scan read badly has figures and signs where letters were. Pages made for search engines repeat a handful of words in
ever new orders, so that no line and no run of words is a duplicate. Both are measured against the language's own text,
since some write apostrophes, colons or capitals within words.
"""

import math

import numpy as np

from anadil.text.ngram_profile import code_point_kinds, word_buckets
from anadil.text.word_endings import is_capital

WINDOW = 128
"""Words of which the distinct ones are counted: the share falls with the length of a text, so windows of one length are compared."""
BLANKS = np.array([ord(each) for each in " \n\t\r\u00a0\u3000"], np.uint32)


def inner_signs(text: str) -> float:
    """Signs and figures between two letters, and capitals behind small letters, for each letter of a text."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    is_letter = code_point_kinds()[codes] > 0
    num_letters = int(is_letter.sum())
    if not num_letters:
        return 0.0
    capitals = is_capital()[codes]
    signs = is_letter[:-2] & ~is_letter[1:-1] & is_letter[2:] & ~np.isin(codes[1:-1], BLANKS)
    behind_small = is_letter[:-1] & ~capitals[:-1] & capitals[1:]
    return float(signs.sum() + behind_small.sum()) / num_letters


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
