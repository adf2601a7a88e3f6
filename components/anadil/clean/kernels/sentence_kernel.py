"""Sentences of texts with their hashes, by which documents are compared."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels import characters as of
from anadil.clean.kernels.characters import ZERO, characters_of, encode
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.line_kernel import LINE_FEED
from anadil.clean.kernels.ngram_kernel import mix_bits
from anadil.text.language_data import Language
from anadil.text.ngram_overlap import DROPPED, SEPARATOR

Array = npt.NDArray[Any]
SPACE, SENTENCE_END, CLOSER = of.SPACE, of.SENTENCE_END, of.CLOSER
FIRST_WIDE = 0x2E80
"""From here on signs end a sentence without a space behind them."""
MIN_LETTERS = 20
"""Least letters of a sentence or line that is compared; ideographs and kana count twice. Shorter lines recur by chance. Our choice."""


class Sentences(NamedTuple):
    """Sentences of several texts, in order."""

    hashes: Array
    texts: Array
    """Number of the text of each."""
    starts: Array
    stops: Array
    """Places in that text."""


@compiled
def find_sentences(codes: Array, ends: Array, tables: Any, least: int, hashes: Array, places: Array) -> int:
    """Fill hashes, and text, start and stop of each sentence; return their number. A line ends one, too."""
    flags, units = tables
    count, begin = 0, 0
    for text in range(len(ends)):
        key, letters, first, last = np.uint64(0), 0, -1, 0
        is_ended, is_wide, was_digit = False, False, False
        for place in range(begin, ends[text] + 1):
            is_last = place == ends[text] or codes[place] == LINE_FEED
            flag = np.uint32(0) if is_last else flags[codes[place]]
            is_next = is_ended and (bool(flag & SPACE) or (is_wide and not flag & (SENTENCE_END | CLOSER)))
            if is_last or is_next:
                if letters >= least:
                    hashes[count] = mix_bits(key)
                    places[0, count], places[1, count], places[2, count] = (
                        text,
                        first - begin,
                        last + 1 - begin,
                    )
                    count += 1
                key, letters, first = np.uint64(0), 0, -1
                is_ended, was_digit = False, False
            if is_last or flag & SPACE:
                continue
            first = place if first < 0 else first
            last = place
            if flag & SENTENCE_END:
                is_ended, is_wide = True, codes[place] >= FIRST_WIDE
            elif not flag & CLOSER:
                is_ended = False
            unit = units[codes[place]]
            is_sign = unit in (SEPARATOR, DROPPED)
            if is_sign or (was_digit and unit == ZERO):
                continue
            was_digit = unit == ZERO
            key = (key ^ np.uint64(unit)) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
            letters += 0 if was_digit else 2 if codes[place] >= FIRST_WIDE else 1
        begin = ends[text]
    return count


def sentences_of(texts: Sequence[str], language: Language) -> Sentences:
    """Return the sentences of a batch of texts; equal hashes where only case, signs, accents, numbers and spaces differ."""
    characters = characters_of(language)
    codes, ends = encode(texts)
    most = len(codes) // (MIN_LETTERS // 2) + 1
    hashes, places = np.empty(most, dtype=np.uint64), np.empty((3, most), dtype=np.int64)
    count = find_sentences(codes, ends, (characters.flags, characters.units), MIN_LETTERS, hashes, places)
    return Sentences(hashes[:count], *places[:, :count])
