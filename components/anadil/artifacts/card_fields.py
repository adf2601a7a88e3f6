"""Fields of a model's page of the hub, `README.md`: the YAML at its beginning."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

MAX_BYTES = 1_000_000
"""Bytes of a page that are read; published ones have tens of thousands."""


def card_fields(folder: Path) -> Mapping[str, object]:
    """Return the fields of a model's card; empty where it has none that can be read."""
    page = folder / "README.md"
    if not page.is_file():
        return {}
    with page.open("rb") as stream:
        text = stream.read(MAX_BYTES).decode(errors="replace")
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---\s*(\n|$)", text, re.DOTALL)
    try:
        fields = yaml.safe_load(match[1]) if match else None
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError of `2024-02-30`, which is no day
        return {}
    return fields if isinstance(fields, dict) else {}


def words_of_field(fields: Mapping[str, object], name: str) -> list[str]:
    """Return a field that may be one word or a list of them."""
    value = fields.get(name)
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each is not None]
