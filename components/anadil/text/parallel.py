"""Parallel text: how a recipe names two languages at once, and how a pair is written in both directions."""

import hashlib
from collections.abc import Sequence

BOTH = " + "
"""Stands between the languages of a source of pairs, in the recipe that cleans it."""
TEMPLATE = "{from_name}: {from_text}\n{to_name}: {to_text}"
"""A pair in one direction, with the languages' English names.

Source: template A of Zhang et al. 2023, arXiv:2301.07069, table 2, the best of six in zero-shot translation. Both
directions, because one teaches itself alone (Kondo et al. 2024, arXiv:2407.03145).
"""
TEMPLATE_DIGEST = hashlib.sha256(TEMPLATE.encode()).hexdigest()[:16]
"""Part of the key of a corpus of pairs: another template makes another corpus."""
DIRECTIONS = 2


def both_languages(languages: Sequence[str]) -> str:
    """Return the name of the languages of a pair as one."""
    return BOTH.join(languages)


def languages_of(language: str) -> list[str]:
    """Return the languages that are named as one; a single one alone."""
    return language.split(BOTH)


def is_pair(language: str) -> bool:
    """Return True if the name is that of two languages."""
    return BOTH in language


def write_pair(names: Sequence[str], texts: Sequence[str]) -> str:
    """Write the first direction of a pair; texts are single lines."""
    return TEMPLATE.format(
        from_name=names[0], from_text=texts[0], to_name=names[1], to_text=texts[1]
    )  # fmt: skip


def other_direction(text: str) -> str:
    """Return the second direction of a pair that `write_pair` wrote."""
    # Sides have no line feed, so that the two lines change places and nothing has to be kept beside the text.
    first, second = text.split("\n")
    return f"{second}\n{first}"
