"""A layout's settings put into the user's recipe file, every other byte as it was.

The text itself is changed, at the places that the YAML parser names. A round trip through
ruamel.yaml keeps comments and quotes, but takes over neither indentation nor line ends nor
spaces between columns. JSON is YAML too, so that one way serves both.
"""

import contextlib
import copy
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError
from anadil.plan.instances import LOCAL, Machine
from anadil.plan.layout import Layout
from anadil.plan.reliability import CheckpointPlan
from anadil.recipe.load import parse_recipe, recipes_dir, shipped

YAML_INDENT = 2
"""Spaces of a new table where the file shows no other habit."""
UNQUOTED = re.compile(r"[A-Za-z][\w./-]*\Z")
"""Text that can stand without quotes, unless it reads as something else."""


def recipe_settings(
    layout: Layout, machine: Machine, nodes: int, checkpoint_every: int | None = None
) -> dict[str, object]:
    """The recipe keys that a layout on some machines stands for.

    Args:
        layout: How devices share the run.
        machine: Of each node.
        nodes: Machines.
        checkpoint_every: Optimizer steps between checkpoints; None leaves the recipe's own.
    """
    settings: dict[str, object] = {
        "pretrain.micro_batch_size": layout.micro_batch_size,
        "pretrain.activation_checkpointing": layout.recompute,
        "pretrain.parallelism.shard": layout.shard,
        "pretrain.parallelism.tensor": layout.tensor,
        "pretrain.parallelism.context": layout.context,
        "pretrain.parallelism.pipeline": layout.pipeline,
    }
    if checkpoint_every is not None:
        settings["pretrain.checkpoint_every"] = checkpoint_every
    if machine.name != LOCAL:
        settings |= {"cluster.instance": machine.name, "cluster.nodes": nodes}
    return settings


def least_waste(checkpoints: CheckpointPlan, steps: int) -> int | None:
    """Optimizer steps between checkpoints by the rule that wastes least; None where a step's time is not known.

    Args:
        checkpoints: With MTBF / 10 and Young-Daly side by side.
        steps: Of the whole run; no distance is longer.
    """
    known = [
        (each.waste, each.steps) for each in checkpoints.intervals if each.steps and each.rule != "recipe"
    ]
    return min(min(known)[1], steps) if known else None


def write_layout(path: Path, settings: Mapping[str, object]) -> None:
    """Put values into a recipe file, in one step; a file that says the same already stays untouched.

    Args:
        path: The user's file, YAML or JSON; of a link, the file that it leads to is changed.
        settings: Numbers and words by dotted key, such as `pretrain.micro_batch_size`.

    Raises:
        RecipeError: It is a shipped recipe or no file, has mistakes before or with the new values,
            or is written in a way in which a key finds no place.
    """
    target = _own_file(path)
    try:
        text = target.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: cannot be read: {error}") from None
    parse_recipe(text, str(path))
    new = with_settings(text, settings, str(path))
    parse_recipe(new, str(path))
    if new != text:
        _replace(target, new.encode("utf-8"))


def with_settings(text: str, settings: Mapping[str, object], name: str) -> str:
    """The text of a recipe with some values changed or added.

    Args:
        text: YAML or JSON.
        settings: See `write_layout`.
        name: What error messages call it.

    Raises:
        RecipeError: It is no YAML, or a key finds no place in it.
    """
    before, _ = strict_yaml.parse_yaml(text, name)
    expected: Any = copy.deepcopy(before) or {}
    for key, value in settings.items():
        text = _with_setting(text, tuple(key.split(".")), value, name)
        node = expected
        *tables, last = key.split(".")
        for table in tables:
            node = node.setdefault(table, {})
        node[last] = value
        if _read(text) != json.dumps(expected):
            raise RecipeError(f"{name}: {key} finds no place in it; write `{key}: {_scalar(value)}` yourself")
    return text


def _read(text: str) -> str:
    """The data of a text, as JSON, so that 1, 1.0 and true differ; empty where it is no YAML any more."""
    try:
        return json.dumps(strict_yaml.parse_yaml(text, "")[0])
    except RecipeError:
        return ""


def _own_file(path: Path) -> Path:
    target = path.resolve()
    known = {file.stem for file in shipped()}
    if target in {file.resolve() for file in shipped()} or (str(path) in known and not target.is_file()):
        mine = f"{target.stem}-mine.yaml"
        raise RecipeError(
            f"recipe {path}: is shipped with anadil and not changed; copy it first "
            f"(anadil recipe copy {target.stem} {mine}) and plan {mine}"
        )
    if not target.is_file():
        raise RecipeError(
            f"recipe {str(path)[:100]}: no such file to write to; give a file of your own, "
            f"such as a copy of one in {recipes_dir()}"
        )
    return target


def _with_setting(text: str, path: tuple[str, ...], value: object, name: str) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    as_json = isinstance(root, yaml.MappingNode) and bool(root.flow_style)
    node: Any = root
    for depth, key in enumerate(path):
        inner = _item(node, key)
        if inner is None:
            return _added(text, root, node, path[depth:], value, as_json=as_json)
        node = inner
    if not isinstance(node, yaml.ScalarNode):
        raise RecipeError(f"{name}: {'.'.join(path)} is a table or a list there; write it as one value")
    return _replaced(text, node, value, as_json=as_json)


def _item(node: Any, key: str) -> Any:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for word, value in node.value if word.value == key), None)


def _replaced(text: str, node: yaml.ScalarNode, value: object, *, as_json: bool) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    old = strict_yaml.scalar(node.value) if node.style is None else node.value
    if json.dumps(old) == json.dumps(value):
        return text
    end = start + len(text[start:end].rstrip())  # a block of text ends behind its line
    gap = " " if text[start - 1] == ":" else ""
    return text[:start] + gap + _scalar(value, node.style, as_json=as_json) + text[end:]


def _scalar(value: object, style: str | None = None, *, as_json: bool = False) -> str:
    """A value as text; words in the quotes that the old value had."""
    if isinstance(value, str) and not as_json and style != '"':
        if style == "'":
            return "'" + value.replace("'", "''") + "'"
        if UNQUOTED.match(value) and yaml.safe_load(value) == value == strict_yaml.scalar(value):
            return value
    return json.dumps(value, ensure_ascii=False)


def _added(text: str, root: Any, table: Any, path: tuple[str, ...], value: object, *, as_json: bool) -> str:
    """The text with a new key behind the last one of its table, or behind the last table."""
    if table is None:
        return _behind_line(text, len(text), _block(path, value, 0, YAML_INDENT))
    if not isinstance(table, yaml.MappingNode) or (table.value and not table.flow_style):
        # What is no table cannot take a key; the check afterwards says so.
        column = table.start_mark.column
        lines = _block(path, value, column, _step(root))
        return _behind_line(text, _end_of(table), lines)
    return _into_flow(text, table, _flow(path, value, as_json=as_json))


def _block(path: tuple[str, ...], value: object, column: int, step: int) -> list[str]:
    lines = [f"{' ' * (column + step * depth)}{key}:" for depth, key in enumerate(path)]
    return [*lines[:-1], f"{lines[-1]} {_scalar(value)}"]


def _flow(path: tuple[str, ...], value: object, *, as_json: bool) -> str:
    entry = _scalar(value, as_json=as_json)
    for depth, key in enumerate(reversed(path)):
        entry = f"{json.dumps(key) if as_json else key}: {'{' + entry + '}' if depth else entry}"
    return entry


def _step(root: yaml.Node) -> int:
    """By how much the file indents a table."""
    for _, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            return int(value.start_mark.column) - int(root.start_mark.column)
    return YAML_INDENT


def _end_of(node: Any) -> int:
    """Where the last value of a node ends; the mark of a table lies behind the comments after it."""
    if node.value and not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        last = node.value[-1]
        return _end_of(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def _behind_line(text: str, at: int, lines: list[str]) -> str:
    """Put lines behind the line in which a place lies."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if at and text[at - 1] != "\n":
        end = text.find("\n", at)
        if end < 0:
            return text + newline + newline.join(lines)
        at = end + 1
    return text[:at] + "".join(line + newline for line in lines) + text[at:]


def _into_flow(text: str, table: yaml.MappingNode, entry: str) -> str:
    """Put an entry last into `{...}`, on a line of its own where the others have theirs."""
    if not table.value:
        at = table.start_mark.index + 1
        return text[:at] + entry + text[at:]
    key, value = table.value[-1]
    end = value.end_mark.index
    rest = re.compile(r"[ \t]*(,?)[ \t]*(#.*?)?(?=\r?\n)").match(text, end)
    if rest is None or key.start_mark.line == table.start_mark.line:
        return f"{text[:end]}, {entry}{text[end:]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    comma = rest.group(1)
    before = text[:end] + ("" if comma else ",") + rest.group()
    return f"{before}{newline}{' ' * key.start_mark.column}{entry}{comma}{text[rest.end() :]}"


def _replace(target: Path, content: bytes) -> None:
    """Write beside the file, with its permissions, and take its place in one step."""
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    draft = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # not every file system can
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
