"""Values of records by a key, or by a path of keys such as `document.text`."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def field_of(row: Mapping[str, Any], path: str) -> Any:
    """The value of a key, or of a path of keys; None where a table on the way is null."""
    if path in row:
        return row[path]
    for dot in re.finditer(r"\.", path):  # each of them: keys may hold dots too
        first, rest = path[: dot.start()], path[dot.end() :]
        if first in row and row[first] is None:
            return None
        if isinstance(row.get(first), dict):
            with suppress(KeyError):
                return field_of(row[first], rest)
    raise KeyError(path)
