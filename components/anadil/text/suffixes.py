"""Borders of suffixes in the words of a language that glues them together, from the suffixes of its pack."""

from collections.abc import Collection, Iterator
from functools import lru_cache

MIN_STEM = 3
"""Letters of the shortest stem; shorter ones are mostly chance."""
MIN_WORD = 6
"""Letters from which on a word is checked."""


def suffix_borders(word: str, suffixes: Collection[str], stems: Collection[str]) -> frozenset[int]:
    """Places in a folded word at which a suffix begins; none where no known stem is found.

    A stem is a word that the text holds by itself, such as `kitablar` or `kitab` of `kitablardan`: the longest, what
    follows it being suffixes, and then the same within the stem.

    Args:
        word: In one case, as `Language.fold` gives it.
        suffixes: Of the language, folded too.
        stems: Words of the text, folded too.
    """
    borders: set[int] = set()
    end = len(word)
    for border in range(len(word) - 1, MIN_STEM - 1, -1):
        if word[:border] not in stems:
            continue
        chain = _chain(word[border:end], frozenset(suffixes))
        if chain:
            borders.add(border)
            borders.update(border + place for place in _places(chain))
            end = border
    return frozenset(borders)


def _places(chain: tuple[str, ...]) -> Iterator[int]:
    """Where the suffixes after the first begin."""
    place = 0
    for suffix in chain[:-1]:
        place += len(suffix)
        yield place


# Stems differ, but endings come again and again.
@lru_cache(maxsize=65_536)
def _chain(text: str, suffixes: frozenset[str]) -> tuple[str, ...]:
    """The fewest suffixes that make up a text; none where it is no chain of them."""
    if text in suffixes:
        return (text,)
    shortest: tuple[str, ...] = ()
    for cut in range(1, len(text)):
        if text[:cut] in suffixes:
            rest = _chain(text[cut:], suffixes)
            if rest and (not shortest or len(rest) + 1 < len(shortest)):
                shortest = (text[:cut], *rest)
    return shortest
