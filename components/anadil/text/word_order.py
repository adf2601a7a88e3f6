"""Order of words: tells running text from lists of keywords and from shuffled words.

Frequent words are classes of their own. All others are of the class of their last letters, which in a language that
inflects say what a word does in its sentence. The mean by which two classes stand together more often than chance is
well above 0 in running text of any kind, and about 0 or less in other text.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from anadil.text.ngram_profile import NUM_BUCKETS, Figures, pack, unpack, word_buckets
from anadil.text.word_shapes import ending_buckets, joined

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
