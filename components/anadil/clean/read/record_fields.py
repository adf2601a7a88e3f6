"""Fields that clean reads of a record, under whatever keys its data set has it: text, address, source, licence."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from anadil.core.field_paths import field_of

LICENCE_KEYS = ("license", "licence")
"""Keys or columns under which a record names its licence; the first one that it has."""
MAX_LICENCE_CHARS = 200
MAX_DEPTH = 3
"""Tables within a record in which its address is looked for: `metadata.warc_headers.warc-target-uri` of OSCAR."""
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
"""Their values are addresses where they begin with a scheme."""
WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
HOST = re.compile(r"[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:[/?#]\S*)?")
ADDRESS_KEYS = "url, u, uri, link, source_url, WARC-Target-URI, metadata.url"
"""Examples, for messages."""


def text_of(row: Mapping[str, Any], text_field: str) -> str | None:
    """The text of a record; None where it is null.

    Raises:
        ValueError: There is none, with the reason.
    """
    try:
        value = field_of(row, text_field)
    except KeyError:
        raise ValueError(
            f"no key {text_field!r} (clean.text_field) among {', '.join(map(repr, row))}"
        ) from None
    # Many writers of Parquet mark no column as text, so bytes that are UTF-8 are text too.
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8: {error}") from None
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{text_field!r} is not text but a {type(value).__name__}")
    return value


def licence_of(row: Mapping[str, Any]) -> str:
    """The licence that a record names; empty where it names none."""
    named = next(filter(None, (writable(row.get(key)) for key in LICENCE_KEYS)), "")
    return " ".join(named.split())[:MAX_LICENCE_CHARS]


def address_of(row: Mapping[str, Any]) -> str:
    """The address of the page that a record was taken from; empty where it names none."""
    if own := writable(row.get("url")):
        return own
    return min(_addresses(row, 0), default=(0, 0, ""), key=lambda address: address[:2])[2]


def _addresses(row: Mapping[str, Any], depth: int) -> Iterator[tuple[int, int, str]]:
    """Each address with its rank and how deep it lies."""
    for key, value in row.items():
        if isinstance(value, dict):
            if depth < MAX_DEPTH:
                yield from _addresses(value, depth + 1)
        elif isinstance(value, str | bytes) and (rank := _rank(key)) is not None:
            text = writable(value).strip()
            if WITH_SCHEME.fullmatch(text) or (key not in MAYBE_KEYS and HOST.fullmatch(text)):
                yield rank, depth, text


@lru_cache(4096)
def _rank(key: str) -> int | None:
    """How surely a key is that of the page's address, 0 the surest; None: it is another."""
    plain = NO_LETTER.sub("", key.lower())
    if plain == "url":
        return 0
    if ADDRESS_KEY.fullmatch(plain) and not OTHER_ADDRESS.search(plain):
        return 1
    return 2 if plain in HOST_KEYS else 3 if plain in MAYBE_KEYS else None


def address_columns(paths: Sequence[str]) -> list[str]:
    """The columns of a table that may hold the address of a row's page, the surest first.

    Args:
        paths: Of all columns, such as `metadata.url` of one in another; `list` in one is a list's.
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


def writable(value: object) -> str:
    """A text without the lone surrogates that JSON can smuggle in; empty for anything else."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
