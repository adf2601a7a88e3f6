"""Find text, address, source and licence of a record, under whatever keys its data set has them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow.parquet as pq

from anadil.core.errors import DataError
from anadil.core.json_text import field_of, parse_json
from anadil.text.language import find_language
from anadil.text.language_data import Language

LICENCE_KEY = re.compile(
    r"(?:(?:[a-z]+[ _.:-])*(?P<own>licen[cs]e)|(?:(?:dc|dcterms|edm|usage)[ _.:-])?(?P<rights>rights)(?:[ _-]?(?:list|statements?))?)"
    r"(?P<more>s|[ _.:-]?(?:names?|ids?|identifier|spdx(?:[ _-]?id)?|abbr\w*|types?|(?P<url>urls?|uri|link)))?",
    re.IGNORECASE,
)
"""Keys or columns under which a record names its licence: `license`, `license_url`, `repo_license_type`, `dc:rights`."""
OF_LICENCE = (
    "spdx_id", "spdx", "id", "name", "title", "abbr", "type", "label", "key", "url", "uri", "href", "link", "rights", "rightsURI",
)  # fmt: skip
"""Keys of a licence that is a table; the first one that it has."""
MAX_LICENCE_CHARS = 200
MAX_DEPTH = 3
"""Tables within a record in which address and licence are looked for: `metadata.warc_headers.warc-target-uri` of OSCAR."""
META_KEYS = frozenset(
    ("meta", "metadata", "meta_data", "extra", "info", "attributes", "properties", "provenance")
)
"""Keys of what some writers pack as JSON into a text."""
MAX_META_CHARS = 100_000
MAX_ADDRESS_COLUMNS = 3
"""Columns of a table that are read for an address."""
NO_LETTER = re.compile(r"[^a-z]")
ADDRESS_KEY = re.compile(r"u|.*(?:url|uri|link|href)")
"""Keys of an address, in lower case and letters alone: HPLT writes `u`, CulturaX `url`, OSCAR `warc-target-uri`."""
OTHER_ADDRESS = re.compile(
    r"image|img|photo|picture|thumb|video|audio|media|licen|logo|icon|avatar|author|user|feed|rss|api|download|refer|next|prev"
)
"""In keys of addresses that are not the page's own."""
HOST_KEYS = frozenset(("domain", "host", "hostname", "netloc", "site", "website"))
MAYBE_KEYS = frozenset(("source", "origin", "page", "id", "docid"))
WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
HOST = re.compile(r"[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:[/?#]\S*)?")
ADDRESS_KEYS = "url, u, uri, link, source_url, WARC-Target-URI, metadata.url"
"""Examples, for messages."""
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


def text_of(row: Mapping[str, Any], text_field: str) -> str | None:
    """Return the text of a record; None where it is null."""
    try:
        return field_text(row, text_field)
    except KeyError:
        raise ValueError(
            f"no key {text_field!r} (clean.text_field) among {', '.join(map(repr, row))}"
        ) from None


def field_text(row: Mapping[str, Any], field: str) -> str | None:
    """Return the text of a field of a record; None where it is null."""
    value = field_of(row, field)
    # Many writers of Parquet mark no column as text, so bytes that are UTF-8 are text too.
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8: {error}") from None
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field!r} is not text but a {type(value).__name__}")
    return value


def licence_of(row: Mapping[str, Any]) -> str:
    """Return the licence that a record names; empty where it names none."""
    named = min(_licences(row, 0), default=(0, 0, ""), key=lambda licence: licence[:2])[2]
    return " ".join(named.split())[:MAX_LICENCE_CHARS]


def _values(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values; a table that is written as JSON is one."""
    for key, value in row.items():
        packed = None
        if isinstance(value, str | bytes) and key.lower() in META_KEYS and len(value) <= MAX_META_CHARS:
            with suppress(ValueError):
                packed = parse_json(value)
        yield key, packed if isinstance(packed, dict) else value


def _licences(row: Mapping[str, Any], depth: int) -> Iterator[tuple[int, int, str]]:
    """Yield each licence with the rank of its key and how deep it lies."""
    for key, value in _values(row):
        if (rank := _licence_rank(key)) is not None:
            if text := _licence_text(value):
                yield rank, depth, text
        elif isinstance(value, dict) and depth < MAX_DEPTH:
            yield from _licences(value, depth + 1)


@lru_cache(4096)
def _licence_rank(key: str) -> int | None:
    """Rank how surely a key is that of the record's licence, 0 the surest; None: it is another."""
    match = LICENCE_KEY.fullmatch(key)
    if match is None:
        return None
    is_other = (match.end("own") - match.start("own")) < len(key)
    return 2 * (match["url"] is not None) + is_other + 4 * (match["rights"] is not None)


def _licence_text(value: Any) -> str:
    if isinstance(value, dict):
        return next(filter(None, (_licence_text(value.get(key)) for key in OF_LICENCE)), "")
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(filter(None, map(_licence_text, value))))
    return writable(value)


def address_of(row: Mapping[str, Any]) -> str:
    """Return the address of the page that a record was taken from; empty where it names none."""
    if url := writable(row.get("url")):
        return url
    return min(_addresses(row, 0), default=(0, 0, ""), key=lambda address: address[:2])[2]


def _addresses(row: Mapping[str, Any], depth: int) -> Iterator[tuple[int, int, str]]:
    """Yield each address with its rank and how deep it lies."""
    for key, value in _values(row):
        if isinstance(value, dict):
            if depth < MAX_DEPTH and _licence_rank(key) is None:
                yield from _addresses(value, depth + 1)
        elif isinstance(value, str | bytes) and (rank := _rank(key)) is not None:
            text = writable(value).strip()
            if WITH_SCHEME.fullmatch(text) or (key not in MAYBE_KEYS and HOST.fullmatch(text)):
                yield rank, depth, text


@lru_cache(4096)
def _rank(key: str) -> int | None:
    """Rank how surely a key is that of the page's address, 0 the surest; None: it is another."""
    plain = NO_LETTER.sub("", key.lower())
    if plain == "url":
        return 0
    if ADDRESS_KEY.fullmatch(plain) and not OTHER_ADDRESS.search(plain):
        return 1
    return 2 if plain in HOST_KEYS else 3 if plain in MAYBE_KEYS else None


def address_columns(paths: Sequence[str]) -> list[str]:
    """Choose the columns of a table that may hold the address of a row's page, the surest first.

    `paths` are those of all columns, such as `metadata.url` of one in another; `list` in one is a list's.
    """
    if "url" in paths:
        return ["url"]
    ranked = [
        (rank, path.count("."), path)
        for path in paths
        if path.count(".") <= MAX_DEPTH and ".list." not in path
        if (rank := _rank(path.rpartition(".")[2])) is not None
    ]
    return [path for _, _, path in sorted(ranked, key=lambda each: each[:2])][:MAX_ADDRESS_COLUMNS]


def columns_beside(paths: Sequence[str]) -> list[str]:
    """Choose the columns of a table that are read beside text and address: `source`, and those that name a licence."""
    licences: dict[str, None] = {}
    for path in paths:
        parts = path.split(".")
        at = next(
            (at for at, part in enumerate(parts[: MAX_DEPTH + 1]) if _licence_rank(part) is not None), None
        )
        if at is not None:
            licences[".".join(parts[: at + 1])] = None
    return [*(path for path in paths if path == "source" or path.lower() in META_KEYS), *licences]


def columns_to_read(name: str, schema: pq.ParquetSchema, *fields: str) -> list[str]:
    """Choose the columns of text and address, and others that the file has; within tables by their path.

    Args:
        schema: Schema of the file; Parquet lets several columns have one name, of which Arrow would give the last.
        fields: Column of the text, or the path to it, such as `document.text`; those of both sides of pairs.
    """
    names = list(schema.to_arrow_schema().names)
    paths = [schema.column(index).path for index in range(len(schema))]
    for field in fields:
        if field not in names and not any(path == field or path.startswith(f"{field}.") for path in paths):
            raise DataError(f"{name}: no column {field!r} (clean.text_field) among {', '.join(names)}")
    columns = [*fields, *address_columns(paths), *columns_beside(paths)]
    counts = Counter(names)
    for column in columns:
        if (count := counts[column]) > 1:
            remedy = "rename or leave out all but one"
            if column in fields:
                remedy = "rename them, and name the one to read in clean.text_field"
            raise DataError(
                f"{name}: {count} columns are named {column!r}, and which to read is unknown; {remedy}"
            )
    return list(dict.fromkeys(columns))


def writable(value: object) -> str:
    """Return a text without the lone surrogates that JSON can smuggle in; empty for anything else."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


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


def table_columns(name: str, columns: Sequence[str], sides: Sides) -> list[str]:
    """Return the column of each side; none for a table of two columns without names."""
    if any(key_of(columns, side) for side in sides) or len(columns) != len(sides):
        return columns_of_sides(name, columns, sides)
    if all(map(OTHER_NAMES.fullmatch, columns)):
        codes = " and ".join(side.code for side in sides)
        raise DataError(
            f"{name}: columns {_listed(columns)} do not say which language is which; name them {codes}"
        )
    return []


def _listed(columns: Sequence[str]) -> str:
    # Without names they are sentences.
    return ", ".join(repr(column[:MAX_NAME_CHARS]) for column in columns)


def columns_of_sides(name: str, columns: Sequence[str], sides: Sides) -> list[str]:
    """Return the column of each side; a table that lacks one is refused."""
    known = [key_of(columns, side) for side in sides]
    if missing := [side.code for side, column in zip(sides, known, strict=True) if column is None]:
        codes = " and ".join(side.code for side in sides)
        raise DataError(
            f"{name}: no column {' or '.join(map(repr, missing))} among {_listed(columns)}; name the columns of the sides "
            f"{codes}, or give a table of these two columns alone, in this order"
        )
    return [str(column) for column in known]
