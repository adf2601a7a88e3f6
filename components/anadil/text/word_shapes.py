"""Shapes of words: endings that tell a language from unknown siblings, and signs of damaged or made-up text.

Words end in few ways, which topics share and siblings do not. A text with many words that end as no word of the sample
does is a sibling's, or misread. Words with a capital do not count, since names end in any way. A scan read badly has
figures and signs where letters were. Pages made for search engines repeat a handful of words in ever new orders, so no
line and no run of words is a duplicate. All are measured against the language's own text: some write apostrophes,
colons or capitals within words.

Order of words tells running text from lists of keywords and from shuffled words. Frequent words are classes of their
own, all others of the class of their last letters, which in a language that inflects say what a word does in its
sentence. The mean by which two classes stand together more often than chance is well above 0 in running text only.
"""

import functools
import itertools
import math
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from anadil.text.letters import name_of
from anadil.text.ngram_profile import (
    MULTIPLIER,
    NUM_BUCKETS,
    Codes,
    Figures,
    code_point_kinds,
    codes_of,
    letters_of,
    pack,
    to_buckets,
    unpack,
    word_buckets,
)

WINDOW = 128
"""Words of which the distinct ones are counted: the share falls with the length of a text, so windows of one length are compared."""
MIN_LETTERS = 320
"""Least letters of a text that is judged by its signs and capitals: in a shorter one, one address is as much."""
USUAL = " \n\t\r-_/:@=&#.,;()[]<>{}'\"\u02bc"
"""Blanks and ASCII signs that words, addresses and code have within. All punctuation beyond ASCII is usual: some scripts put no
blank behind it, or write it within words."""
BEYOND_ASCII = range(0x80, 0x20000)
ENDING = 4
"""Letters at the end of a word, with its border. Measured on seven languages learnt of handbooks: where .03 of messages of
programs in the language are lost, .00 to .28 of siblings are kept by four letters, .00 to .51 by five or by whole words."""
KNOWN = 2
"""Texts of the sample that end a word so, from which an ending is known: a misprint or a quotation is in one."""

Endings = npt.NDArray[np.bool_]
"""True for each bucket that is an ending of the language."""
NUM_WORDS, NUM_ENDINGS = 128, 127
"""Classes. Measured on thirteen languages, of .6 to 2 MB each: between the hundredth of running text and the twentieth of shuffled text that
are nearest to each other lies .61 of their spread in the mean and .06 at the least; of half as many classes, with endings of two letters,
.45; of pairs of a thousand hashed classes .15 (nine of the languages), and less of larger samples, because pairs share buckets."""
ORDER_ENDING = 3
"""Letters of an ending. Of two letters .63 in the mean, but Azerbaijani and Turkish overlap (-.10, -.23); of one .32."""
MIN_PAIRS = 16  # Neighbours with a class, from which a text is judged by them
STEPS = 8  # Steps of a nat in a pack: a byte holds -15 to 15
NUM_CLASSES = 1 + NUM_WORDS + NUM_ENDINGS
SIZE = 2 * NUM_BUCKETS + NUM_CLASSES**2  # Bytes of a packed table
Words = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Buckets of each whole word of a text, and of each ending."""
Classes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


@functools.cache
def is_capital() -> npt.NDArray[np.bool_]:
    """True for each code point that is a capital."""
    return np.strings.isupper(np.arange(sys.maxunicode + 1, dtype=np.uint32).view("U1"))


def capitals_share(texts: Iterable[str]) -> float:
    """Share of capitals in the most frequent script. Latin names make no capitals of a script that has none."""
    letters = Counter(filter(str.isalpha, itertools.chain.from_iterable(texts)))
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[name_of(letter)] += count
    most = max(scripts, key=scripts.__getitem__, default="")
    capitals = sum(count for each, count in letters.items() if each.isupper() and name_of(each) == most)
    return capitals / max(1, scripts[most])


def small_letters_of(text: str) -> str:
    """`letters_of` the words that begin with no capital."""
    codes = codes_of(f" {text} ")
    is_letter = code_point_kinds()[codes] > 0
    starts = np.zeros_like(is_letter)
    starts[1:] = is_letter[1:] & ~is_letter[:-1]
    is_name = np.append(False, is_capital()[codes[starts]])[np.cumsum(starts)]
    return letters_of(
        np.where(is_letter & ~is_name, codes, np.uint32(ord(" "))).tobytes().decode("utf-32-le")
    )


def ending_buckets(letters: str, num: int = ENDING) -> npt.NDArray[np.int64]:
    """The bucket of the last letters of every word of `letters_of` a text, or of `small_letters_of` it."""
    codes = codes_of(letters)
    is_letter = codes != ord(" ")
    last = np.flatnonzero(is_letter[:-1] & ~is_letter[1:])
    places = last[:, np.newaxis] - np.arange(num)
    inside = np.logical_and.accumulate((places >= 0) & is_letter[places], axis=1)
    factors = np.array([pow(int(MULTIPLIER), place + 1, 1 << 64) for place in range(num)], np.uint64)
    return to_buckets((np.where(inside, codes[places], 0) * factors).sum(axis=1, dtype=np.uint64))


def count_endings(texts: Iterable[str]) -> npt.NDArray[np.uint32]:
    """Texts in which a word ends so, by bucket. From `KNOWN` on it is an ending of the language."""
    counts = np.zeros(NUM_BUCKETS, np.uint32)
    for text in texts:
        counts[np.unique(ending_buckets(small_letters_of(text)))] += 1
    return counts


def pack_endings(endings: Endings) -> str:
    """Endings as text."""
    return pack(np.packbits(endings).tobytes())


def unpack_endings(packed: str) -> Endings:
    """Unpack a text of `pack_endings`."""
    return np.unpackbits(np.frombuffer(unpack(packed, NUM_BUCKETS // 8), np.uint8)).astype(np.bool_)


def joined(pieces: Sequence[str]) -> tuple[str, npt.NDArray[np.int64]]:
    """Pieces of `letters_of` texts as one, in which no word is of two of them, and the number of the piece of each word."""
    numbers = np.repeat(np.arange(len(pieces)), [len(piece.split()) for piece in pieces])
    return "".join(f" {piece} " for piece in pieces), numbers


def score_endings(letters: str, endings: Endings) -> float:
    """The share of words that end as none of the language."""
    endings_of_text = ending_buckets(letters)
    return float(np.mean(~endings[endings_of_text])) if len(endings_of_text) else 1.0


def scores_of_endings(pieces: Sequence[str], endings: Endings) -> Figures:
    """`score_endings` of each of many pieces, at once."""
    # A piece may end amid a word.
    letters, numbers = joined([piece[: piece.rfind(" ") + 1] for piece in pieces])
    unknown, total = (
        np.bincount(numbers, weights, minlength=len(pieces))
        for weights in (~endings[ending_buckets(letters)], None)
    )
    return np.where(total > 0, unknown / np.maximum(1, total), 1.0)


@functools.cache
def is_usual() -> npt.NDArray[np.bool_]:
    """True for each code point that may be between letters."""
    usual = np.zeros(sys.maxunicode + 1, np.bool_)
    usual[[ord(each) for each in USUAL]] = True
    usual[[code for code in BEYOND_ASCII if unicodedata.category(chr(code))[0] in "PZ"]] = True
    return usual


def inner_signs(codes: Codes) -> Figures:
    """Figures and unusual signs between two letters, for each letter of a text."""
    is_letter = code_point_kinds()[codes] > 0
    between = is_letter[..., :-2] & ~is_letter[..., 1:-1] & is_letter[..., 2:]
    between &= ~is_usual()[codes[..., 1:-1]]
    signs: Figures = between.sum(axis=-1) / np.maximum(1, is_letter.sum(axis=-1))
    return signs


def inner_capitals(text: str) -> float:
    """Capitals behind small letters, for each letter; NaN for few letters, which exceeds no limit."""
    codes = codes_of(text)
    is_letter = code_point_kinds()[codes] > 0
    num_letters = int(is_letter.sum())
    if num_letters < MIN_LETTERS:
        return math.nan
    capitals = is_capital()[codes]
    return float((is_letter[:-1] & ~capitals[:-1] & capitals[1:]).sum()) / num_letters


def distinct_words(letters: str) -> float:
    """Mean share of distinct words in windows of `letters_of` a text; NaN if shorter than a window, which is below no limit."""
    words = word_buckets(letters)
    num_windows = len(words) // WINDOW
    if not num_windows:
        return math.nan
    windows = np.sort(words[: num_windows * WINDOW].reshape(num_windows, WINDOW), axis=1)
    return float((1 + (np.diff(windows, axis=1) > 0).sum(axis=1)).mean()) / WINDOW


@dataclass(frozen=True, slots=True)
class WordOrder:
    """Classes of words, and how they stand together."""

    numbers: Classes
    """Class of each bucket of whole words, and of endings; 0 is none. Shape (2, `NUM_BUCKETS`)."""
    associations: npt.NDArray[np.int8]
    """`STEPS` of a nat by which one class before another is more frequent than chance. Shape (`NUM_CLASSES`, `NUM_CLASSES`)."""

    @classmethod
    def learn(cls, texts: Iterable[Words]) -> Self:
        """Learn from the words of a sample.

        Source: pointwise mutual information, as of `score_association`.
        """
        sample = [*texts]
        numbers = np.zeros((2, NUM_BUCKETS), np.uint8)
        words = np.zeros(NUM_BUCKETS, np.int64)
        for each, _ in sample:
            words += np.bincount(each, minlength=NUM_BUCKETS)
        _number(numbers[0], words, 1, NUM_WORDS)
        endings = np.zeros(NUM_BUCKETS, np.int64)
        for each, last in sample:
            endings += np.bincount(last[numbers[0][each] == 0], minlength=NUM_BUCKETS)
        _number(numbers[1], endings, 1 + NUM_WORDS, NUM_ENDINGS)
        pairs = np.zeros(NUM_CLASSES**2)
        for each, last in sample:
            classes = _classes(numbers, each, last)
            places = _with_neighbour(classes)
            first, second = classes[places], classes[places + 1]
            pairs += np.bincount(first * NUM_CLASSES + second, minlength=NUM_CLASSES**2)
        counted = pairs.reshape(NUM_CLASSES, NUM_CLASSES)
        # One is added to both: without, pairs that are too rare to be counted weigh most.
        chance = counted.sum(1, keepdims=True) * counted.sum(0, keepdims=True) / max(1.0, counted.sum())
        steps = np.rint(STEPS * np.log((counted + 1) / (chance + 1)))
        return cls(numbers, np.clip(steps, -127, 127).astype(np.int8))

    def score(self, letters: str) -> float:
        """Mean nats by which the neighbours in `letters_of` a text are more frequent than chance; NaN for fewer than `MIN_PAIRS`."""
        classes = _classes(self.numbers, *words_of(f" {letters} "))
        places = _with_neighbour(classes)
        if len(places) < MIN_PAIRS:
            return math.nan
        return float(self.associations[classes[places], classes[places + 1]].mean()) / STEPS

    def scores(self, pieces: Sequence[str]) -> Figures:
        """`score` of each of many pieces, at once."""
        letters, numbers = joined(pieces)
        classes = _classes(self.numbers, *words_of(letters))
        places = _with_neighbour(classes)
        places = places[numbers[places] == numbers[places + 1]]
        steps = self.associations[classes[places], classes[places + 1]]
        total, count = (
            np.bincount(numbers[places], weights, minlength=len(pieces)) for weights in (steps, None)
        )
        return np.where(count >= MIN_PAIRS, total / np.maximum(1, count) / STEPS, np.nan)

    def pack(self) -> str:
        """Pack as text."""
        return pack(self.numbers.tobytes() + self.associations.tobytes())

    @classmethod
    def unpack(cls, packed: str) -> Self:
        """Read a text of `pack`."""
        data = np.frombuffer(unpack(packed, SIZE), np.uint8)
        numbers, associations = np.split(data, [2 * NUM_BUCKETS])
        return cls(
            numbers.reshape(2, NUM_BUCKETS), associations.view(np.int8).reshape(NUM_CLASSES, NUM_CLASSES)
        )


def words_of(letters: str) -> Words:
    """Words of `letters_of` a text."""
    return word_buckets(letters), ending_buckets(letters, ORDER_ENDING)


def _number(numbers: Classes, counts: npt.NDArray[np.int64], first: int, most: int) -> None:
    """Give the most frequent buckets a class each; of equal ones, the first."""
    # Stable, so that equal counts give the same classes on every machine.
    frequent = np.argsort(-counts, kind="stable")[:most]
    frequent = frequent[counts[frequent] > 0]
    numbers[frequent] = np.arange(first, first + len(frequent))


def _classes(numbers: Classes, words: npt.NDArray[np.int64], endings: npt.NDArray[np.int64]) -> Numbers:
    whole = numbers[0][words]
    classes: Numbers = np.where(whole > 0, whole, numbers[1][endings]).astype(np.int64)
    return classes


def _with_neighbour(classes: Numbers) -> Numbers:
    """Places of the words that have a class and stand before one that has."""
    return np.flatnonzero((classes[:-1] > 0) & (classes[1:] > 0))
