"""A limit written into a recipe: one line of YAML, with every comment left where it is."""

import difflib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts.storage import store
from anadil.core.errors import AnadilError, DataError, RecipeError
from anadil.core.strict_yaml import parse_yaml
from anadil.recipe.load import load_recipe

INDENT = "  "
MAX_BYTES = 1 << 20
"""Largest recipe that is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A change of a recipe, before it is written."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> list[str]:
        """Lines of a unified diff, without its head."""
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=2)
        return list(lines)[2:]

    @property
    def digest(self) -> str:
        """Digest of the file as it was read: what is written must be what was looked at."""
        return hashlib.sha256(self.before.encode()).hexdigest()


def lines_to_paste(keys: tuple[str, ...], value: float) -> str:
    """Return the YAML that sets a key."""
    return "\n".join(f"{INDENT * depth}{key}:" for depth, key in enumerate(keys)) + f" {_plain(value)}"


def set_option(keys: tuple[str, ...], value: float) -> str:
    """Return the option of a command line that sets a key."""
    return f"--set {'.'.join(keys)}={_plain(value)}"


def change_of(path: str, keys: tuple[str, ...], value: float) -> RecipeChange:
    """Return the change of a recipe file that sets a key to a number."""
    place = Path(path).expanduser()
    if place.suffix not in (".yaml", ".yml") or not place.is_file():
        raise DataError(
            f"{path[:200]}: no such recipe; give the path of the .yaml file that the run was started with"
        )
    if place.stat().st_size > MAX_BYTES:
        raise RecipeError(
            f"{place}: larger than {MAX_BYTES:,} bytes, which no recipe is; paste the line by hand"
        )
    before = place.read_bytes().decode(errors="replace")
    after = _with_value(before, keys, _plain(value))
    expected = _merged(parse_yaml(before, str(place))[0], keys, value)
    # The text is changed by lines; that it says what is meant, and no more, is what YAML reads.
    if after is None or _read(after) != expected:
        raise RecipeError(
            f"{place}: {'.'.join(keys)} stands there in a form that is not changed here, such as {{}} or an anchor; paste the line by hand"
        )
    return RecipeChange(path=place, before=before, after=after)


def write_change(change: RecipeChange, digest: str) -> None:
    """Write a change, if the file is still as it was when somebody looked at the change."""
    if change.digest != digest:
        raise RecipeError(f"{change.path}: was changed meanwhile; look at the change again")
    # Beside the recipe, so that paths in it that are relative mean the same.
    draft = change.path.with_name(f".{change.path.stem}.{os.getpid()}.yaml")
    try:
        draft.write_text(change.after, encoding="utf-8")
        try:
            load_recipe(str(draft), [])
        except AnadilError as error:
            raise RecipeError(
                f"{change.path}: not written, since the recipe would be refused: {error}"
            ) from None
        # A link stays one: the file that it names is written.
        store(str(change.path)).write(str(change.path.resolve()), change.after.encode())
    except OSError as error:
        raise DataError(
            f"{change.path}: cannot be written ({error.strerror}); paste the line by hand"
        ) from None
    finally:
        draft.unlink(missing_ok=True)


def _with_value(text: str, keys: tuple[str, ...], value: str) -> str | None:
    """Return the text with a key set; None where a key on the way has a value of its own."""
    # Lines and not a YAML writer: none keeps comments, order and spelling of what it does not change.
    lines = text.split("\n")
    first, end, indent, depth = 0, len(lines), 0, 0
    for depth, key in enumerate(keys):
        line = _line_of(lines, first, end, key, indent)
        if line is None:
            break
        head, rest = lines[line].split(":", 1)
        if depth == len(keys) - 1:
            # A comment behind the value is about the key, and stays.
            comment = re.search(r"\s+#.*$", rest)
            lines[line] = f"{head}: {value}{comment[0] if comment else ''}"
            return "\n".join(lines)
        if rest.split("#")[0].strip():
            return None
        first, end = line + 1, _end_of_block(lines, line + 1, end, indent)
        inner = _indent_of_block(lines, first, end)
        indent = inner if inner is not None and inner > indent else indent + len(INDENT)
    else:
        return None
    # Missing keys go below the last line of its block, before blank lines and comments that follow it.
    while end > first and not _is_content(lines[end - 1]):
        end -= 1
    new = lines_of(keys[depth:], value, indent)
    return "\n".join([*lines[:end], *new, *lines[end:]])


def lines_of(keys: tuple[str, ...], value: str, indent: int) -> list[str]:
    """Return lines that set a key below others."""
    pad = " " * indent
    lines = [f"{pad}{INDENT * depth}{key}:" for depth, key in enumerate(keys)]
    return [*lines[:-1], f"{lines[-1]} {value}"]


def _line_of(lines: list[str], first: int, end: int, key: str, indent: int) -> int | None:
    pattern = re.compile(rf" {{{indent}}}{re.escape(key)}\s*:(\s|$)")
    return next((place for place in range(first, end) if pattern.match(lines[place])), None)


def _end_of_block(lines: list[str], first: int, end: int, indent: int) -> int:
    """Return where the lines end that are indented deeper."""
    return next(
        (
            place
            for place in range(first, end)
            if _is_content(lines[place]) and _depth(lines[place]) <= indent
        ),
        end,
    )


def _indent_of_block(lines: list[str], first: int, end: int) -> int | None:
    return next((_depth(line) for line in lines[first:end] if _is_content(line)), None)


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _merged(data: Any, keys: tuple[str, ...], value: float) -> Any:
    table = dict(data) if isinstance(data, dict) else {}
    head, *rest = keys
    table[head] = _merged(table.get(head), tuple(rest), value) if rest else _number(value)
    return table


def _read(text: str) -> Any:
    try:
        return parse_yaml(text, "recipe")[0]
    except RecipeError:
        return None


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _plain(value: float) -> str:
    return repr(_number(value))
