"""Part a sample into whole sources, or clusters of like texts, so that each is judged by what the others teach.

Limits that are measured on a random half are those of text like the sample. What a corpus is cleaned of is of other kinds, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from anadil.clean.read.input_kinds import check_suffixes
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.core.errors import DataError
from anadil.text import ngram_profile
from anadil.text.ngram_profile import Codes, Figures, Table, buckets, codes_of, letters_of
from anadil.text.word_shapes import KNOWN, Endings, WordOrder, Words, count_endings, words_of

NUM_ORDERS = max(*ngram_profile.ORDERS, *ngram_profile.ASSOCIATED)
MAX_SHARE, MIN_SHARE = 1 / 4, 1 / 16
"""Share of the sample's characters: a larger part is cut in two clusters, since the others would teach little; smaller ones are joined. Our choice."""
ORDER, NUM_HASHED, NUM_STEPS = 4, 2_048, 30
"""Letters of the n-grams that texts are compared by, to how many they are hashed, and steps of the search for a direction."""


def parts_of(texts: Sequence[str], sources: Mapping[str, str]) -> list[list[str]]:
    """Part texts, in an order that only they decide; the largest part first. Those without a source are of one."""
    named: dict[str, list[str]] = {}
    for text in texts:
        named.setdefault(sources.get(text, ""), []).append(text)
    parts = _by_size(named.values())
    total = sum(map(len, texts))
    while len(parts) > 1 and _size(parts[-1]) < MIN_SHARE * total:
        *rest, second, first = parts
        parts = _by_size([*rest, first + second])
    while _size(parts[0]) > MAX_SHARE * total and len(parts[0]) > 1:
        parts = _by_size([*parts[1:], *_halves(parts[0])])
    return parts


def _size(part: Sequence[str]) -> int:
    return sum(map(len, part))


def _by_size(parts: Iterable[list[str]]) -> list[list[str]]:
    return sorted(parts, key=lambda part: (-_size(part), part))


def _halves(texts: Sequence[str]) -> list[list[str]]:
    """Cut texts into two clusters of about as many characters, along the direction in which they differ most.

    Source: Boley 1998, "Principal direction divisive partitioning".
    """
    rows = np.stack([_direction_of(text) for text in texts])
    rows -= rows.mean(axis=0)
    direction = rows[np.argmax((rows**2).sum(axis=1))]
    for _ in range(NUM_STEPS):
        direction = rows.T @ (rows @ direction)
        direction /= np.linalg.norm(direction) or 1.0
    order = np.argsort(np.round(rows @ direction, 6), kind="stable")
    sizes = np.cumsum([len(texts[place]) for place in order])
    half = min(max(1, int(np.searchsorted(sizes, sizes[-1] / 2))), len(texts) - 1)
    return [[texts[place] for place in sorted(each)] for each in (order[:half], order[half:])]


def _direction_of(text: str) -> npt.NDArray[np.float32]:
    hashes = buckets(codes_of(letters_of(text)), ORDER)[-1] % NUM_HASHED
    counts = np.bincount(hashes, minlength=NUM_HASHED)
    # Roots, because of the shares alone the most frequent n-grams would decide.
    return np.sqrt(counts / max(1, len(hashes))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of a part of a sample."""

    ngrams: npt.NDArray[np.float64]
    words: list[Words]
    endings: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Count the n-grams, words and endings of texts."""
        return cls(
            ngram_profile.count_ngrams(texts, NUM_ORDERS),
            [words_of(letters_of(text)) for text in texts],
            count_endings(texts),
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """Measures of a text."""

    ngrams: Table
    associated: tuple[Table, ...]
    word_order: WordOrder
    endings: Endings

    @classmethod
    def learn(cls, parts: Sequence[Counted]) -> Self:
        """Sum the counts of a sample's parts, at least one."""
        ngrams = np.sum([part.ngrams for part in parts], axis=0)
        return cls(
            ngram_profile.to_table(ngrams, ngram_profile.ORDERS),
            tuple(ngram_profile.to_table(ngrams, (order,)) for order in ngram_profile.ASSOCIATED),
            WordOrder.learn(words for part in parts for words in part.words),
            np.sum([part.endings for part in parts], axis=0) >= KNOWN,
        )

    def association(self, letters: Codes) -> Figures:
        """Score the association of `letters_of` a text."""
        return ngram_profile.score_association(
            buckets(letters, len(ngram_profile.ASSOCIATED)), self.associated
        )


class SampleText(str):
    """A text that knows its source: the host that its record names, or its file."""

    __slots__ = ("source",)
    source: str

    @classmethod
    def of(cls, text: str, source: str) -> Self:
        """Make the text of a source."""
        known = cls(text)
        known.source = source
        return known


def read_texts(uris: Sequence[str], text_field: str) -> Iterator[SampleText]:
    """Yield the texts of files, in order."""
    check_suffixes(uris, "the texts to learn from")
    for uri in uris:
        stats = ReadStats()
        for record in read_records(uri, uri, text_field, stats):
            if record.html is not None:
                raise DataError(f"{uri}: holds web pages; clean them first, and give the corpus's text")
            yield SampleText.of(record.text, urlsplit(record.url).hostname or uri)
        if not stats.records:
            raise DataError(
                f"{uri}: holds no text that can be read; {'; '.join(stats.places) or 'it is empty'}"
            )
        stats.check_bad_share(1)  # a warning, since nobody trains on a sample
