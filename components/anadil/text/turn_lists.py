"""Lists of turns, however a table keeps them."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from anadil.core.json_text import parse_json
from anadil.text.chat_columns import unread_in_turns


def given_turns(given: object) -> object:
    """A list of turns, also where a table keeps it as one JSON text or as columns."""
    return turns_of(_unpacked(given))


def turns_of(given: object) -> object:
    """A list of turns, also where Hugging Face's `Sequence` keeps it: a list of each column of the turns."""
    if not isinstance(given, Mapping):
        return given
    columns = [column for column in given.values() if isinstance(column, list | tuple)]
    if not columns or len(columns) < len(given) or len({len(column) for column in columns}) > 1:
        return given
    return [dict(zip(given, turn, strict=True)) for turn in zip(*columns, strict=True)]


def unread_of_turns(row: Mapping[str, object], columns: Iterable[str]) -> dict[str, list[object]]:
    """Keys of the turns in some columns that are not read, such as `messages.reasoning_content`, and their values."""
    return {
        f"{name}.{key}": values
        for name in columns
        if name in row
        for key, values in unread_in_turns(given_turns(row[name])).items()
    }


def _unpacked(listed: object) -> object:
    """The turns also where a table keeps them as one JSON text."""
    if isinstance(listed, str) and listed.lstrip().startswith("["):
        with suppress(ValueError):
            return parse_json(listed)
    return listed
