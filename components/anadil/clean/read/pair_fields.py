"""Find both sides of parallel text in a record or a table, by the ids of their languages."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from anadil.clean.read.record_fields import field_text
from anadil.core.errors import DataError
from anadil.text.language import find_language
from anadil.text.language_data import Language

NESTED = "translation"
"""Key of a table that holds both sides: the data sets of OPUS on the Hugging Face hub have it."""
OTHER_NAMES = re.compile(
    r"(?:src|trg|tgt|source|target|sentence|text|original|translation|side|lang(?:uage)?)[ _-]?(?:[0-9]|text|sentence|lang(?:uage)?)?",
    re.IGNORECASE,
)
"""Names of columns that say no language. Taken for a pair, they would guess which side is which."""
MAX_NAME_CHARS = 40
Sides = Sequence[Language]
"""Languages of both sides, the first one first."""


def key_of(names: Sequence[str], language: Language) -> str | None:
    """Return the name of a language among some: its id in any spelling, or its English name."""
    if language.code in names:
        return language.code
    for name in names:
        known = find_language(name.strip())
        if name.strip().lower() in (language.code.lower(), language.name.lower()):
            return name
        if known is not None and known.code == language.code:
            return name
    return None


def texts_of(row: Mapping[str, Any], sides: Sides) -> tuple[str, ...]:
    """Return the text of each side of a record; that of one that is null is empty."""
    nested = row.get(NESTED)
    table = nested if isinstance(nested, dict) else row
    return tuple(field_text(table, _key(list(table), side)) or "" for side in sides)


def _key(names: Sequence[str], side: Language) -> str:
    key = key_of(names, side)
    if key is None:
        raise ValueError(f"no {side.name} side: no key {side.code!r} among {_listed(names)}")
    return key


def parquet_columns(name: str, names: Sequence[str], sides: Sides) -> list[str]:
    """Return the columns that hold the sides."""
    return [NESTED] if NESTED in names else _columns(name, names, sides)


def table_columns(name: str, columns: Sequence[str], sides: Sides) -> list[str]:
    """Return the column of each side; none for a table of two columns without names."""
    if any(key_of(columns, side) for side in sides) or len(columns) != len(sides):
        return _columns(name, columns, sides)
    if all(map(OTHER_NAMES.fullmatch, columns)):
        codes = " and ".join(side.code for side in sides)
        raise DataError(
            f"{name}: columns {_listed(columns)} do not say which language is which; name them {codes}"
        )
    return []


def _listed(columns: Sequence[str]) -> str:
    # Without names they are sentences.
    return ", ".join(repr(column[:MAX_NAME_CHARS]) for column in columns)


def _columns(name: str, columns: Sequence[str], sides: Sides) -> list[str]:
    known = [key_of(columns, side) for side in sides]
    if missing := [side.code for side, column in zip(sides, known, strict=True) if column is None]:
        codes = " and ".join(side.code for side in sides)
        raise DataError(
            f"{name}: no column {' or '.join(map(repr, missing))} among {_listed(columns)}; name the columns of the sides "
            f"{codes}, or give a table of these two columns alone, in this order"
        )
    return [str(column) for column in known]
