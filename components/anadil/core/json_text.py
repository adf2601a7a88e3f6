"""JSON of a file that others have written: a value that nests without end is refused, like text that is not JSON.

Python's own reader raises a `RecursionError`, and what stays below its limit fails later, in whoever walks the value.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_DEPTH = 100
"""Our choice; the deepest rows that we know of, calls of tools with their schemas, nest some twenty times."""
DECODER = json.JSONDecoder()


class TooDeepError(ValueError):
    """A value nests more than `MAX_DEPTH` times."""

    def __init__(self) -> None:
        super().__init__(f"nested too deep (at most {MAX_DEPTH} levels)")


def parse_json(text: str | bytes, *, no_twins: bool = False) -> Any:
    """The value of a text, as `json.loads`; `no_twins` refuses a key that a table has twice with other values."""
    try:
        value = json.loads(text, object_pairs_hook=_without_twins if no_twins else None)
    except RecursionError:
        raise TooDeepError from None
    opened = (
        text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    )
    if opened > MAX_DEPTH:
        refuse_deep(value)
    return value


def parse_next(text: str, place: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends, as `json.JSONDecoder.raw_decode`."""
    try:
        value, end = DECODER.raw_decode(text, place)
    except RecursionError:
        raise TooDeepError from None
    if text.count("{", place, end) + text.count("[", place, end) > MAX_DEPTH:
        refuse_deep(value)
    return value, end


def refuse_deep(value: object) -> None:
    """Refuse a value that nests too deep, of YAML also one that holds itself."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inner = (each for one in level for each in (one.values() if isinstance(one, dict) else one))
        # Aliases of YAML name one list many times.
        level = list({id(each): each for each in inner if isinstance(each, dict | list)}.values())
        if not level:
            return
    raise TooDeepError


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs) and (twins := [name for name, value in pairs if table[name] != value]):
        raise ValueError(f"key {twins[0]!r} is given twice; remove one")
    return table


def write_json(path: Path, value: Any) -> None:
    """Write a small file of our own."""
    # Dropped text may hold lone surrogates.
    path.write_bytes(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def read_json(path: Path) -> Any:
    """Read a small file of our own."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_indented(path: Path, value: Any, indent: int = 1, *, allow_nan: bool = True) -> None:
    """Write a file of an artifact that people read, too."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=allow_nan)
    path.write_text(text + "\n", encoding="utf-8")


def json_lines(source: Path | bytes | str, *, may_be_torn: bool = False) -> Iterator[Any]:
    """Yield the value of each line of our own JSON lines, read as it is asked for; empty lines are skipped.

    Args:
        source: A file, or the content of one.
        may_be_torn: A killed process may have cut off the last line: it is skipped if it has no line feed.
    """
    # Not `splitlines`: JSON lets U+2028 and the like stand in a text.
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield from _values(file, may_be_torn)
    else:
        content = source.encode() if isinstance(source, str) else source
        yield from _values(io.BytesIO(content), may_be_torn)


def _values(lines: Iterable[bytes], may_be_torn: bool) -> Iterator[Any]:
    for line in lines:
        if line.strip() and not (may_be_torn and not line.endswith(b"\n")):
            yield json.loads(line)


def json_sha256(value: Any, *, sort_keys: bool = True) -> str:
    """SHA-256 of a value as JSON, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=sort_keys).encode()).hexdigest()


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
