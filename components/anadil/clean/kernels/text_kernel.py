"""The pass that fills all columns for a batch of texts.

Japanese sentences and characters are counted as Swallow counts them, but blank lines are no lines that repeat another:
extraction writes them between paragraphs.
Source: Swallow Corpus, arXiv:2404.17733, section 3.2, and swallow-corpus, quality.py.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels import characters as of
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.line_kernel import LINE_FEED, line_repetition, line_shapes, sign_shares, split_lines
from anadil.clean.kernels.ngram_kernel import (
    char_repetition,
    combined,
    duplicate_shares,
    hash_codes,
    word_repetition,
)
from anadil.clean.kernels.word_kernel import (
    letter_shares,
    sentence_shares,
    split_words,
    stop_word_shares,
    word_shapes,
)

Array = npt.NDArray[Any]

FIRST_OF_SWALLOW, LAST_OF_SWALLOW = COLUMN["japanese_chars"], COLUMN["duplicate_char_10grams"]
JAPANESE, HIRAGANA, KATAKANA = of.JAPANESE, of.HIRAGANA, of.KATAKANA
SWALLOW_END, ELLIPSIS, SPACE = of.SWALLOW_END, of.ELLIPSIS, of.SPACE
NUM, SHARE = COLUMN["japanese_chars"], COLUMN["japanese"]
HIRAGANA_SHARE, KATAKANA_SHARE = COLUMN["hiragana"], COLUMN["katakana"]
MEAN, LONGEST, OPEN = (COLUMN["mean_sentence"], COLUMN["longest_sentence"], COLUMN["ellipsis_sentences"])
LINES, SENTENCES = COLUMN["duplicate_swallow_lines"], COLUMN["duplicate_sentences"]


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


@compiled
def japanese_shares(codes: Array, flags: Array, row: Array) -> None:
    """Fill the columns of kana and kanji."""
    japanese, hiragana, katakana = 0, 0, 0
    for place in range(len(codes)):
        flag = flags[codes[place]]
        japanese += (flag & JAPANESE) != 0
        hiragana += (flag & HIRAGANA) != 0
        katakana += (flag & KATAKANA) != 0
    row[NUM] = japanese
    row[SHARE] = japanese / max(1, len(codes))
    row[HIRAGANA_SHARE] = hiragana / max(1, japanese)
    row[KATAKANA_SHARE] = katakana / max(1, japanese)


@compiled
def next_sentence(codes: Array, flags: Array, place: int) -> Any:
    """Return start and end of the sentence at or after a place of a line; equal where the line has none left.

    A sentence has at least one character before its end mark, so that a second mark belongs to none.
    """
    while place < len(codes) and codes[place] != LINE_FEED and flags[codes[place]] & SWALLOW_END:
        place += 1
    stop = place
    while stop < len(codes) and codes[stop] != LINE_FEED and not flags[codes[stop]] & SWALLOW_END:
        stop += 1
    if stop > place and stop < len(codes) and codes[stop] != LINE_FEED:
        stop += 1
    return place, stop


@compiled
def sentence_lengths(codes: Array, flags: Array, row: Array) -> None:
    """Fill the columns of sentences and of the lines that they make up."""
    hashes, lengths = np.empty(len(codes), dtype=np.uint64), np.empty(len(codes), dtype=np.int64)
    lines, line_lengths = np.empty(len(codes), dtype=np.uint64), np.empty(len(codes), dtype=np.int64)
    count, num_lines, num_open, place = 0, 0, 0, 0
    while place < len(codes):
        line_hash, line_length = np.uint64(0), 0
        while True:
            start, place = next_sentence(codes, flags, place)
            if start == place:
                break
            key = hash_codes(codes, start, place)
            line_hash = combined(line_hash, key)
            hashes[count], lengths[count] = key, place - start
            line_length += place - start
            count += 1
            last = place - 1
            while last >= start and flags[codes[last]] & SPACE:
                last -= 1
            # An ellipsis or a middle dot leaves a sentence open.
            num_open += last >= start and (flags[codes[last]] & ELLIPSIS) != 0
        if line_length:
            lines[num_lines], line_lengths[num_lines] = line_hash, line_length
            num_lines += 1
        place += 1
    row[MEAN] = lengths[:count].sum() / max(1, count)
    row[LONGEST] = lengths[:count].max() if count else 0
    row[OPEN] = num_open / max(1, count)
    row[LINES], row[LINES + 1] = duplicate_shares(lines, line_lengths, num_lines)
    row[SENTENCES], row[SENTENCES + 1] = duplicate_shares(hashes, lengths, count)
