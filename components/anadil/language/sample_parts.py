"""The parts of a sample, of which each is judged by what the others teach: whole sources, or clusters of like texts.

Limits that are measured on a random half are those of text like the sample. What a corpus is cleaned of is of other kinds, too.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from anadil.text.ngram_profile import buckets, letters_of

MAX_SHARE, MIN_SHARE = 1 / 4, 1 / 16
"""Share of the sample's characters: a larger part is cut in two clusters, since the others would teach little; smaller ones are joined. Our choice."""
ORDER, NUM_HASHED, NUM_STEPS = 4, 2_048, 30
"""Letters of the n-grams that texts are compared by, to how many they are hashed, and steps of the search for a direction."""


def parts_of(texts: Sequence[str], sources: Mapping[str, str]) -> list[list[str]]:
    """Parts of the texts, the largest first; one text alone cannot be parted.

    Args:
        texts: In an order that only they decide.
        sources: Text -> its source; those without one are of the same.
    """
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
    """Two clusters of about as many characters, along the direction in which texts differ most.

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
    """Roots of the shares of hashed n-grams: of shares alone, the most frequent ones would decide."""
    hashes = buckets(letters_of(text), ORDER)[-1] % NUM_HASHED
    counts = np.bincount(hashes, minlength=NUM_HASHED)
    return np.sqrt(counts / max(1, len(hashes))).astype(np.float32)
