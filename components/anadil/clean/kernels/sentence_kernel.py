"""Japanese sentences and characters, as Swallow counts them.

Source: Swallow Corpus, arXiv:2404.17733, section 3.2, and swallow-corpus, quality.py. Unlike its code, blank lines
are no lines that repeat another: extraction writes them between paragraphs.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels import characters as of
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.ngram_kernel import combined, duplicate_shares, hash_codes

Array = npt.NDArray[Any]

JAPANESE, HIRAGANA, KATAKANA = of.JAPANESE, of.HIRAGANA, of.KATAKANA
SWALLOW_END, ELLIPSIS, SPACE = of.SWALLOW_END, of.ELLIPSIS, of.SPACE
NUM, SHARE = COLUMN["japanese_chars"], COLUMN["japanese"]
HIRAGANA_SHARE, KATAKANA_SHARE = COLUMN["hiragana"], COLUMN["katakana"]
MEAN, LONGEST, OPEN = (COLUMN["mean_sentence"], COLUMN["longest_sentence"], COLUMN["ellipsis_sentences"])
LINES, SENTENCES = COLUMN["duplicate_swallow_lines"], COLUMN["duplicate_sentences"]


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
