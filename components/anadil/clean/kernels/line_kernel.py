"""Lines and paragraphs of a text, as Gopher, C4 and FineWeb judge them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels import characters as of
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.ngram_kernel import combined, duplicate_shares, hash_codes
from anadil.clean.kernels.word_kernel import ends_sentence

Array = npt.NDArray[Any]

SPACE, SENTENCE_END, CLOSER, BULLET = of.SPACE, of.SENTENCE_END, of.CLOSER, of.BULLET
ALONE = of.ALONE
LINE_FEED, DOT, ELLIPSIS = ord("\n"), ord("."), ord("…")
SIGNS_PER_WORD = {"hashes": "#", "new_lines": "\n"}
"""Statistic -> characters whose number is divided by that of the words."""
SIGNS = {"curly_brackets": "{"}
"""Statistic -> characters that are counted."""
SHORT_LINE = 30
"""Source: FineWeb, arXiv:2406.17557, section 3.6."""
LONG_LINE = 200
"""Source: mC4, arXiv:2010.11934, section 3.1."""
LINE_WORDS = 3
"""Fewest words of a line. Source: C4, arXiv:1910.10683, section 2.2, and its code."""
MAX_WORD_CHARS = 1_000
"""A line with a longer word goes. Source: C4, its code."""
PHRASES = (
    "lorem ipsum", "javascript", "terms of use", "privacy policy", "cookie policy", "uses cookies",
    "use of cookies", "use cookies",
)  # fmt: skip
"""The first drops a document, the others a line. Source: C4, its code."""
PHRASE_STARTS = np.zeros((128, 128), dtype=np.bool_)
"""Pairs of letters that a phrase begins with, in any case."""
for _phrase in PHRASES:
    for _first in (_phrase[0], _phrase[0].upper()):
        PHRASE_STARTS[ord(_first), [ord(_phrase[1]), ord(_phrase[1].upper())]] = True
PHRASE_CODES = np.zeros((len(PHRASES), max(map(len, PHRASES))), dtype=np.uint32)
for _number, _phrase in enumerate(PHRASES):
    PHRASE_CODES[_number, : len(_phrase)] = [ord(letter) for letter in _phrase]
SIGN_COLUMNS = np.array([COLUMN[name] for name in (*SIGNS_PER_WORD, *SIGNS)])
NUM_PER_WORD = len(SIGNS_PER_WORD)
OTHER_SIGN, BEGINS_PHRASE, IS_ELLIPSIS = len(SIGN_COLUMNS), 64, 128
"""Low bits of a mark without a column, and flags of characters that may begin a phrase or an ellipsis."""
MARKS = np.full(0x10000, OTHER_SIGN, dtype=np.uint8)
"""Code point -> place of its column in `SIGN_COLUMNS`, with the flags above. Most characters have neither, and cost one look."""
for _number, _characters in enumerate((*SIGNS_PER_WORD.values(), *SIGNS.values())):
    MARKS[[ord(_character) for _character in _characters]] = _number
MARKS[[*map(ord, {letter for phrase in PHRASES for letter in (phrase[0], phrase[0].upper())})]] |= (
    BEGINS_PHRASE
)
MARKS[[DOT, ELLIPSIS]] |= IS_ELLIPSIS
WORDS, LONGEST, LINES, LINE_ENDS = (COLUMN[name] for name in ("words", "longest_word", "lines", "line_ends"))
SHARES = tuple(
    COLUMN[name] for name in ("bullet_lines", "ellipsis_lines", "line_ends", "short_lines", "c4_lines")
)
LONG_LINES, C4_SENTENCES = COLUMN["long_lines"], COLUMN["c4_sentences"]
ELLIPSES, LOREM_IPSUM = COLUMN["ellipses"], COLUMN["lorem_ipsum"]
PHRASES_FOUND = COLUMN["c4_phrases"]
DUPLICATE_LINES, DUPLICATE_PARAGRAPHS = COLUMN["duplicate_lines"], COLUMN["duplicate_paragraphs"]


@compiled
def split_lines(codes: Array, flags: Array, starts: Array, stops: Array, paragraphs: Array) -> int:
    """Find the lines that are not blank, without the white space around them, and the paragraph of each."""
    count, paragraph, start = 0, 0, 0
    for place in range(len(codes) + 1):
        if place < len(codes) and codes[place] != LINE_FEED:
            continue
        first, last = start, place
        while first < last and flags[codes[first]] & SPACE:
            first += 1
        while first < last and flags[codes[last - 1]] & SPACE:
            last -= 1
        if first < last:
            starts[count], stops[count], paragraphs[count] = first, last, paragraph
            count += 1
        else:
            paragraph += 1
        start = place + 1
    return count


@compiled
def line_repetition(
    codes: Array, starts: Array, stops: Array, paragraphs: Array, count: int, row: Array
) -> None:
    """Fill the columns of repeated lines and paragraphs."""
    hashes, lengths = np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.int64)
    blocks, block_lengths = np.empty(count, dtype=np.uint64), np.zeros(count, dtype=np.int64)
    num_blocks = 0
    for line in range(count):
        key = hash_codes(codes, starts[line], stops[line])
        hashes[line] = key
        lengths[line] = stops[line] - starts[line]
        if line == 0 or paragraphs[line] != paragraphs[line - 1]:
            blocks[num_blocks] = np.uint64(0)
            num_blocks += 1
        blocks[num_blocks - 1] = combined(blocks[num_blocks - 1], key)
        block_lengths[num_blocks - 1] += lengths[line]
    shares = duplicate_shares(hashes, lengths, count)
    row[DUPLICATE_LINES], row[DUPLICATE_LINES + 1] = shares
    shares = duplicate_shares(blocks, block_lengths, num_blocks)
    row[DUPLICATE_PARAGRAPHS], row[DUPLICATE_PARAGRAPHS + 1] = shares


@compiled
def is_open(codes: Array, start: int, stop: int) -> Any:
    """Return whether a line ends in an ellipsis."""
    last = codes[stop - 1]
    if last == DOT and stop - start >= 3:
        return codes[stop - 2] == DOT and codes[stop - 3] == DOT
    return last == ELLIPSIS


@compiled
def has_words(codes: Array, kinds: Array, start: int, stop: int) -> bool:
    """Return whether a line has the fewest words that C4 asks for."""
    count, before = 0, 0
    for place in range(start, stop):
        kind = kinds[codes[place]]
        if kind and (kind != before or kind == ALONE):
            count += 1
            if count == LINE_WORDS:
                return True
        before = kind
    return False


@compiled
def has_long_word(codes: Array, kinds: Array, start: int, stop: int) -> bool:
    """Return whether a line holds a word of more than `MAX_WORD_CHARS` characters."""
    length, before = 0, 0
    for place in range(start, stop):
        kind = kinds[codes[place]]
        length = length + 1 if kind and kind == before and kind != ALONE else 1
        if length > MAX_WORD_CHARS:
            return True
        before = kind
    return False


@compiled
def phrase_at(codes: Array, place: int, stop: int) -> int:
    """Return the number of the phrase that begins here, in any case; -1 if none does."""
    if place + 1 >= stop or codes[place] > 127 or codes[place + 1] > 127:
        return -1
    if not PHRASE_STARTS[codes[place], codes[place + 1]]:
        return -1
    for number in range(PHRASE_CODES.shape[0]):
        length = 0
        while length < PHRASE_CODES.shape[1] and PHRASE_CODES[number, length]:
            if place + length >= stop or codes[place + length] > 127:
                break
            code = codes[place + length]
            if (code + 32 if 65 <= code <= 90 else code) != PHRASE_CODES[number, length]:
                break
            length += 1
        if length == PHRASE_CODES.shape[1] or not PHRASE_CODES[number, length]:
            return number
    return -1


@compiled
def is_c4_line(codes: Array, kinds: Array, start: int, stop: int, row: Array) -> bool:
    """Return whether C4 would keep a line that ends a sentence. Source: arXiv:1910.10683, section 2.2, and its code."""
    if is_open(codes, start, stop) or not has_words(codes, kinds, start, stop):
        return False
    if row[LONGEST] > MAX_WORD_CHARS and has_long_word(codes, kinds, start, stop):
        return False
    if row[PHRASES_FOUND]:
        for place in range(start, stop):
            if phrase_at(codes, place, stop) > 0:
                return False
    return True


@compiled
def line_shapes(codes: Array, tables: Any, starts: Array, stops: Array, count: int, row: Array) -> None:
    """Fill the columns of how lines begin and end, how long they are, and which C4 would keep."""
    flags, kinds, has_spaces = tables
    sums = np.zeros(len(SHARES), dtype=np.int64)
    long_lines, sentences = 0, 0
    for line in range(count):
        start, stop = starts[line], stops[line]
        last = stop - 1
        while last > start and flags[codes[last]] & CLOSER:
            last -= 1
        ends = (flags[codes[last]] & SENTENCE_END) != 0
        is_c4 = ends and is_c4_line(codes, kinds, start, stop, row)
        sums[0] += (flags[codes[start]] & BULLET) != 0
        sums[1] += is_open(codes, start, stop)
        sums[2] += ends
        sums[3] += stop - start <= SHORT_LINE
        sums[4] += is_c4
        long_lines += stop - start >= LONG_LINE
        if is_c4:
            count_of_line = 0
            for place in range(start, stop):
                count_of_line += ends_sentence(codes[:stop], flags, place, has_spaces)
            sentences += max(1, count_of_line)
    row[LINES] = count
    for number in range(len(SHARES)):
        row[SHARES[number]] = sums[number] / max(1, count)
    row[LINE_ENDS] = (row[LINE_ENDS] * count + 1) / (count + 1)
    row[LONG_LINES] = long_lines
    row[C4_SENTENCES] = sentences


@compiled
def sign_shares(codes: Array, row: Array) -> None:
    """Fill the columns of signs, and of the phrases that C4 drops a document or a line for."""
    counts = np.zeros(OTHER_SIGN + 1, dtype=np.int64)
    ellipses, lorem, phrases, dots = 0, 0, 0, 0
    for place in range(len(codes)):
        code = codes[place]
        mark = MARKS[code] if code < len(MARKS) else OTHER_SIGN
        if mark == OTHER_SIGN:
            continue
        counts[mark & (BEGINS_PHRASE - 1)] += 1
        if mark & IS_ELLIPSIS:
            dots = dots + 1 if code == DOT and place and codes[place - 1] == DOT else 1
            ellipses += dots % 3 == 0 or code == ELLIPSIS
        if mark & BEGINS_PHRASE:
            phrase = phrase_at(codes, place, len(codes))
            lorem += phrase == 0
            phrases += phrase > 0
    words = max(1.0, row[WORDS])
    for number in range(OTHER_SIGN):
        row[SIGN_COLUMNS[number]] = counts[number] / (words if number < NUM_PER_WORD else 1.0)
    row[ELLIPSES] = ellipses / words
    row[LOREM_IPSUM] = lorem
    row[PHRASES_FOUND] = phrases
