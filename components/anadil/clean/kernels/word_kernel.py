"""Words of a text, and what they tell of its quality."""

from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels import characters as of
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.ngram_kernel import combined

Array = npt.NDArray[Any]

LETTER, SCRIPT, OWN, STRAY = of.LETTER, of.SCRIPT, of.OWN, of.STRAY
SPACE, LOWER, UPPER, NO_START = of.SPACE, of.LOWER, of.UPPER, of.NO_START
OTHER_ALPHABET = of.OTHER_ALPHABET
SENTENCE_END, CLOSER, STRIPPED = of.SENTENCE_END, of.CLOSER, of.STRIPPED
COMMA, ALONE, LOST, LINE_FEED = of.COMMA, of.ALONE, of.LOST, 10
MIN_LAST_LETTERS = 3
"""Letters before a full stop; fewer are an abbreviation as often as a word."""
MIN_RUNNING_CHARS = 60
"""Characters from which a line is running text."""
MIN_CAPITALS = 0.003
"""Share of capitals among the letters with case; with fewer a text is in small letters. Measured: each of 864 Azerbaijani, Turkish, English and Russian
documents has .0035 or more, half of them .016 to .037."""
MIN_NUM_CAPITALS = 2
"""One is a name."""
MIN_SENTENCES = 0.5
"""Sentences of a text that has no beginning and no end of one."""
EMPTY_HASH = 0x27D4EB2F165667C5

CHARS, LETTERS, SCRIPT_SHARE, OWN_SHARE = (
    COLUMN[name] for name in ("chars", "letters", "script", "own_letters")
)
WORDS, MEAN, LONGEST = COLUMN["words"], COLUMN["mean_word_length"], COLUMN["longest_word"]
ALPHA, ISOLATED = COLUMN["alpha_words"], COLUMN["isolated"]
SIGNS, PER_SENTENCE, BROKEN = (
    COLUMN[name] for name in ("sentence_signs", "words_per_sentence", "broken_sentences")
)
STOP_WORDS, STOP_SHARE = COLUMN["stop_words"], COLUMN["stop_word_share"]


@compiled
def split_words(codes: Array, kinds: Array, starts: Array, stops: Array) -> int:
    """Find the runs of one kind, and the characters that are words alone; return their number."""
    count = 0
    before = 0
    for place in range(len(codes)):
        kind = kinds[codes[place]]
        if kind != before or kind == ALONE:
            if before:
                stops[count - 1] = place
            if kind:
                starts[count] = place
                count += 1
            before = kind
    if before:
        stops[count - 1] = len(codes)
    return count


@compiled
def letter_shares(codes: Array, flags: Array, row: Array) -> None:
    """Fill the columns of characters."""
    letters, in_script, own_letters = 0, 0, 0
    for place in range(len(codes)):
        flag = flags[codes[place]]
        if flag & LETTER:
            letters += 1
            in_script += (flag & SCRIPT) != 0
        own_letters += (flag & OWN) != 0
    row[CHARS] = len(codes)
    row[LETTERS] = letters
    row[SCRIPT_SHARE] = in_script / max(1, letters)
    row[OWN_SHARE] = own_letters / max(1, letters)


@compiled
def is_damaged(codes: Array, flags: Array, start: int, stop: int) -> bool:
    """Return whether a word has lost a character, or has letters of another alphabet between its own, or the reverse.

    A word with an ending, such as `iPhoneның`, changes once.
    """
    before, changes = 0, 0
    for place in range(start, stop):
        if codes[place] == LOST:
            return True
        alphabet = flags[codes[place]] & (SCRIPT | OTHER_ALPHABET)
        changes = changes + (alphabet != before) if alphabet and before else 0
        if changes > 1:
            return True
        before = alphabet
    return False


@compiled
def word_shapes(codes: Array, flags: Array, starts: Array, stops: Array, count: int, row: Array) -> None:
    """Fill the columns of lengths, of words that hold a letter, and of stray letters and damaged words."""
    total, longest, alpha, stray = 0, 0, 0, 0
    for word in range(count):
        length = stops[word] - starts[word]
        total += length
        longest = max(longest, length)
        for place in range(starts[word], stops[word]):
            if flags[codes[place]] & LETTER:
                alpha += 1
                break
        stray += length == 1 and (flags[codes[starts[word]]] & STRAY) != 0
        stray += is_damaged(codes, flags, starts[word], stops[word])
    row[WORDS] = count
    row[MEAN] = total / max(1, count)
    row[LONGEST] = longest
    row[ALPHA] = alpha / max(1, count)
    row[ISOLATED] = stray / max(1, count)


@compiled
def stop_word_hash(codes: Array, flags: Array, folds: Array, start: int, stop: int) -> Any:
    """Hash of a word's folded characters without the marks around it."""
    while start < stop and flags[codes[start]] & STRIPPED:
        start += 1
    while start < stop and flags[codes[stop - 1]] & STRIPPED:
        stop -= 1
    key = np.uint64(EMPTY_HASH)
    for place in range(start, stop):
        key = (key ^ np.uint64(folds[codes[place]])) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return combined(key, 0)


@compiled
def stop_word_shares(codes: Array, tables: Any, starts: Array, stops: Array, count: int, row: Array) -> None:
    """Fill the columns of stop words; `tables` ends with theirs: hashes in a table of twice the size."""
    flags, folds, table, longest = tables
    seen = np.zeros(len(table), dtype=np.uint8)
    total = 0
    for word in range(count):
        if stops[word] - starts[word] > longest:
            continue
        key = stop_word_hash(codes, flags, folds, starts[word], stops[word])
        slot = np.int64(key & np.uint64(len(table) - 1))
        while table[slot] and table[slot] != key:
            slot = (slot + 1) & (len(table) - 1)
        if table[slot]:
            seen[slot] = 1
            total += 1
    row[STOP_WORDS] = seen.sum()
    row[STOP_SHARE] = total / max(1, count)


@compiled
def ends_sentence(codes: Array, flags: Array, place: int, has_spaces: bool) -> bool:
    """Return whether a sentence ends with this mark: the last of its kind, and before white space where words need it."""
    if not flags[codes[place]] & SENTENCE_END:
        return False
    place += 1
    while place < len(codes) and flags[codes[place]] & CLOSER:
        place += 1
    if place == len(codes):
        return True
    flag = flags[codes[place]]
    return (flag & SPACE) != 0 if has_spaces else not flag & SENTENCE_END


@compiled
def is_certain_end(codes: Array, flags: Array, place: int, has_spaces: bool) -> bool:
    """Return whether a mark surely ends a sentence: no number, abbreviation, ellipsis or quotation comes before it."""
    if place + 1 < len(codes):
        after = flags[codes[place + 1]]
        if after & CLOSER or (has_spaces and not after & SPACE):
            return False
    letters = 0
    while letters < MIN_LAST_LETTERS and letters < place and flags[codes[place - letters - 1]] & LETTER:
        letters += 1
    return letters >= (MIN_LAST_LETTERS if has_spaces else 1)


@compiled
def begins_sentence(codes: Array, flags: Array, place: int, wrong: int) -> int:
    """Return 1 if a sentence begins with the next letter, -1 if none does, 0 if it cannot tell.

    A line below counts where it is running text: lists and headings begin as they like.
    """
    while place < len(codes) and not flags[codes[place]] & (LETTER | NO_START):
        place += 1
        if codes[place - 1] == LINE_FEED and not is_running_text(codes, flags, place):
            return 0
    if place == len(codes):
        return 0
    return -1 if flags[codes[place]] & wrong else 1


@compiled
def is_running_text(codes: Array, flags: Array, place: int) -> bool:
    """Return whether a line begins with a word and is longer than headings and items of lists mostly are."""
    for letter in range(place, place + MIN_LAST_LETTERS):
        if letter >= len(codes) or not flags[codes[letter]] & LETTER:
            return False
    stop = place
    while stop < len(codes) and codes[stop] != LINE_FEED and stop < place + MIN_RUNNING_CHARS:
        stop += 1
    return stop == place + MIN_RUNNING_CHARS


@compiled
def has_capitals(codes: Array, flags: Array) -> bool:
    """Return whether a text has as many capitals as sentences and names bring with them, beside those that begin its lines."""
    upper, lower, is_first = 0, 0, True
    for place in range(len(codes)):
        flag = flags[codes[place]]
        upper += (flag & UPPER) != 0 and not is_first
        lower += (flag & LOWER) != 0
        is_first = codes[place] == LINE_FEED or (is_first and not flag & LETTER)
    return upper >= max(MIN_NUM_CAPITALS, MIN_CAPITALS * (upper + lower))


@compiled
def sentence_shares(codes: Array, flags: Array, has_spaces: bool, row: Array) -> None:
    """Fill the columns that shuffled words and lists betray themselves by.

    Shuffling leaves as many ends of sentences, but what follows them, and what the text begins with, is no beginning:
    a small letter, or a character that begins no sentence. A text in small letters cannot show it.
    """
    ends, good, bad = 0, 0, 0
    wrong = (LOWER if has_capitals(codes, flags) else 0) if has_spaces else NO_START
    marks = SENTENCE_END if has_spaces else SENTENCE_END | COMMA
    for place in range(len(codes)):
        begins = 0
        if flags[codes[place]] & marks:
            ends += ends_sentence(codes, flags, place, has_spaces)
            if is_certain_end(codes, flags, place, has_spaces):
                begins = begins_sentence(codes, flags, place + 1, wrong)
        elif place == 0 and is_running_text(codes, flags, place):
            begins = begins_sentence(codes, flags, place, wrong)
        good += begins > 0
        bad += begins < 0
    row[SIGNS] = row[STOP_SHARE] + good / max(1, row[WORDS])
    starts_within = has_spaces and is_running_text(codes, flags, 0) and flags[codes[0]] & LOWER
    row[PER_SENTENCE] = row[WORDS] / max(ends + (not starts_within), MIN_SENTENCES)
    row[BROKEN] = bad / (good + bad + 2)
