"""The pass that fills all columns for a batch of texts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.line_kernel import LINE_FEED, line_repetition, line_shapes, sign_shares, split_lines
from anadil.clean.kernels.ngram_kernel import char_repetition, hash_codes, word_repetition
from anadil.clean.kernels.sentence_kernel import japanese_shares, sentence_lengths
from anadil.clean.kernels.word_kernel import (
    letter_shares,
    sentence_shares,
    split_words,
    stop_word_shares,
    word_shapes,
)

Array = npt.NDArray[Any]

FIRST_OF_SWALLOW, LAST_OF_SWALLOW = COLUMN["japanese_chars"], COLUMN["duplicate_char_10grams"]


@compiled
def without_blank_lines(codes: Array) -> Array:
    """Return the text with a single line feed between its paragraphs: a blank line is a matter of style."""
    single, count = np.empty_like(codes), 0
    for place in range(len(codes)):
        if not place or codes[place] != LINE_FEED or codes[place - 1] != LINE_FEED:
            single[count] = codes[place]
            count += 1
    return single[:count]


@compiled
def measure_words(codes: Array, tables: Any, row: Array) -> None:
    """Fill the columns of characters, words and sentences."""
    flags, kinds, folds, stop_words, longest, has_spaces = tables
    starts, stops = np.empty(len(codes) + 1, dtype=np.int32), np.empty(len(codes) + 1, dtype=np.int32)
    count = split_words(codes, kinds, starts, stops)
    letter_shares(codes, flags, row)
    word_shapes(codes, flags, starts, stops, count, row)
    stop_word_shares(codes, (flags, folds, stop_words, longest), starts, stops, count, row)
    sentence_shares(codes, flags, has_spaces, row)
    hashes, offsets = np.empty(count, dtype=np.uint64), np.zeros(count + 1, dtype=np.int32)
    for word in range(count):
        hashes[word] = hash_codes(codes, starts[word], stops[word])
        offsets[word + 1] = offsets[word] + stops[word] - starts[word]
    word_repetition(hashes, offsets, count, row)


@compiled
def measure_lines(codes: Array, tables: Any, row: Array) -> None:
    """Fill the columns of lines and paragraphs."""
    flags, kinds, _, _, _, has_spaces = tables
    most = 1
    for place in range(len(codes)):
        most += codes[place] == 10
    starts, stops = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    paragraphs = np.empty(most, dtype=np.int32)
    count = split_lines(codes, flags, starts, stops, paragraphs)
    line_repetition(codes, starts, stops, paragraphs, count, row)
    line_shapes(codes, (flags, kinds, has_spaces), starts, stops, count, row)


@compiled
def measure_batch(codes: Array, ends: Array, tables: Any, by_character: bool, rows: Array) -> None:
    """Fill the rows of concatenated texts; shape (texts, columns).

    Args:
        tables: Flags, kinds, folds, stop words, length of the longest, and True if spaces part words.
        by_character: True for the columns of Swallow.
    """
    start = 0
    for text in range(len(ends)):
        piece = codes[start : ends[text]]
        single = without_blank_lines(piece)
        measure_words(single, tables, rows[text])
        sign_shares(single, rows[text])
        measure_lines(piece, tables, rows[text])
        if by_character:
            japanese_shares(single, tables[0], rows[text])
            sentence_lengths(single, tables[0], rows[text])
            char_repetition(single, rows[text])
        else:
            rows[text, FIRST_OF_SWALLOW : LAST_OF_SWALLOW + 1] = np.nan
        start = ends[text]
