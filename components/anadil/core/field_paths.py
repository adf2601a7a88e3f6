"""Values of records by a key, or by a path of keys such as `document.text`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any


def field_of(row: Mapping[str, Any], path: str) -> Any:
    """The value of a key, or of a path of keys; None where a table on the way is null.

    Raises:
        KeyError: There is no such key.
    """
    if path in row:
        return row[path]
    for first, rest in _cuts(path):
        if first in row and row[first] is None:
            return None
        if isinstance(row.get(first), dict):
            with suppress(KeyError):
                return field_of(row[first], rest)
    raise KeyError(path)


def _cuts(path: str) -> Iterator[tuple[str, str]]:
    """A path in two, at each of its dots: keys may hold dots too."""
    for dot in re.finditer(r"\.", path):
        yield path[: dot.start()], path[dot.end() :]
