"""Values of JSON as pages read them: a missing field is no error, and no value tells the directories of a machine."""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from anadil.artifacts.base_model import TINY
from anadil.artifacts.packaged_base import PACKAGED
from anadil.core.candidates import COLOURS
from anadil.core.errors import DataError
from anadil.core.format import DASH, number
from anadil.core.json_text import parse_json
from anadil.page.format import figure, percent

Json = dict[str, object]
LOCAL_PREFIXES = ("/", "~", "./", "../", "\\")


def relative_place(target: str, uri: str) -> str:
    """Path of an artifact from the report, such as `../../model/0a1b`; empty where a link would not serve."""
    if not target or ("://" in target) != ("://" in uri):
        return ""
    # Both become paths first: `relpath` would take a scheme for a directory.
    place = posixpath.relpath(uri.replace("://", "/"), target.replace("://", "/"))
    # Only a neighbour: a longer way would tell the directories of a machine.
    return place if re.fullmatch(r"(\.\./){1,2}[\w.-]+(/[\w.-]+)?", place) else ""


def base_name(model: str) -> str:
    """Display name of the base model; never a machine's directory."""
    if base := PACKAGED.get(model):
        return base.name
    return "a tiny Llama" if model == TINY else last_part(model)


def last_part(place: str) -> str:
    """The last part of a path or URI, which says nothing about the machine it is on."""
    return place.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1] or place


def portable(place: str) -> str:
    """A value of the recipe without the directories of a machine."""
    is_place = place.startswith(LOCAL_PREFIXES) or "://" in place
    return f"\N{HORIZONTAL ELLIPSIS}/{last_part(place)}" if is_place else place


def named_tables(value: object) -> list[tuple[str, Json]]:
    """Tables with their names, from a table of tables or a list of tables with a `name`."""
    if isinstance(value, dict):
        return [(str(name), table_of(item)) for name, item in value.items() if isinstance(item, dict)]
    tables = [table_of(item) for item in list_of(value)]
    return [(str(table.get("name") or place + 1), table) for place, table in enumerate(tables)]


def candidates_of(scores: Json) -> dict[str, Json]:
    """Figures of each candidate: base, adapted, merged, finetuned, champion, then any other."""
    tables = dict(named_tables(scores.get("candidates")))
    names = [name for name in COLOURS if name in tables]
    return {name: tables[name] for name in dict.fromkeys([*names, *tables])}


def series(lines: list[Json], key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of every line that holds both as finite numbers, by step."""
    points = (
        (number(line.get("step", place)), number(line.get(key))) for place, line in enumerate(lines, start=1)
    )
    return tuple(sorted((float(x), float(y)) for x, y in points if x is not None and y is not None))


def field(data: object, path: str) -> object:
    """The value at `a.b.c` of nested tables; None where any of them is missing."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def table_of(value: object) -> Json:
    """The value where it is a JSON table, else an empty one."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """The value where it is a list, else an empty one."""
    return list(value) if isinstance(value, list) else []


def interval_of(value: object) -> tuple[float, float] | None:
    """Low and high of an interval that is written as a pair; None without a width, as resampling one document gives it."""
    ends = [number(end) for end in list_of(value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] == ends[1]:
        return None
    return ends[0], ends[1]


def interval_words(value: object, say: Callable[[object], str] = figure) -> str:
    """`1.2 to 1.4`, or a dash."""
    ends = interval_of(value)
    return DASH if ends is None else f"{say(ends[0])} to {say(ends[1])}"


def share_words(share: object) -> str:
    """`12 % (8 to 17)` of a share with its interval, or a dash."""
    value, ends = percent(field(share, "value")), interval_of(field(share, "interval"))
    return f"{value} ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})" if ends else value


def json_table(path: Path, *, needed: bool = True) -> Json:
    """The JSON table of a file. One that is not `needed` may be missing."""
    text = _text(path, needed=needed)
    return table_of(parsed(text, path)) if text else {}


def json_lines(path: Path, *, needed: bool = True) -> list[Json]:
    """The JSON tables of a file, a line each. One that is not `needed` may be missing."""
    # Not `splitlines`: a text may hold U+2028 or U+0085, which end no line of JSON lines.
    lines = [line for line in _text(path, needed=needed).split("\n") if line.strip()]
    return [table_of(parsed(line, path)) for line in lines]


def _text(path: Path, *, needed: bool) -> str:
    if not path.is_file() and not needed:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        word = path.parent.name
        raise DataError(f"{path}: cannot be read ({error}); make the {word} artifact again") from None


def parsed(text: str, path: Path) -> object:
    """The value of a JSON text of a file."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error}); run the stage that writes it again") from None
