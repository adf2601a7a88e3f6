"""Counts of a sample of a language, taken part by part, so that each part can be judged by what the others teach."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from anadil.text import ngram_profile
from anadil.text.ngram_profile import Table
from anadil.text.word_order import WordOrder, Words, words_of
from anadil.text.word_shapes import KNOWN, Endings, count_endings

NUM_ORDERS = max(*ngram_profile.ORDERS, *ngram_profile.ASSOCIATED)


@dataclass(frozen=True, slots=True)
class Counted:
    """A part of a sample."""

    ngrams: npt.NDArray[np.float64]
    words: list[Words]
    endings: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Count what its tables are made of."""
        return cls(
            ngram_profile.count_ngrams(texts, NUM_ORDERS),
            [words_of(ngram_profile.letters_of(text)) for text in texts],
            count_endings(texts),
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """Measures of a text."""

    own: Table
    associated: tuple[Table, ...]
    word_order: WordOrder
    endings: Endings

    @classmethod
    def learn(cls, parts: Sequence[Counted]) -> Self:
        """Sum of the tables of a sample's parts, at least one."""
        ngrams = np.sum([part.ngrams for part in parts], axis=0)
        return cls(
            ngram_profile.to_table(ngrams, ngram_profile.ORDERS),
            tuple(ngram_profile.to_table(ngrams, (order,)) for order in ngram_profile.ASSOCIATED),
            WordOrder.learn(words for part in parts for words in part.words),
            np.sum([part.endings for part in parts], axis=0) >= KNOWN,
        )

    def association(self, letters: str) -> float:
        """`score_association` of `letters_of` a text."""
        return ngram_profile.score_association(
            ngram_profile.buckets(letters, len(ngram_profile.ASSOCIATED)), self.associated
        )
