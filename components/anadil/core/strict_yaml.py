"""YAML without its surprises: 1.2 scalars, no duplicate keys, no aliases, a size limit.

Plain YAML 1.1 reads `1e-4` as a word, `no` as false, `010` as 8 and `12:30` as 750, keeps
the last of two equal keys silently, and expands nested aliases without bound.
"""

import re

import yaml

from anadil.core.errors import RecipeError

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_NUMBER_CHARS = 400
"""A longer one is a word; Python turns no more than 4,300 digits into an integer and back."""

Path = tuple[str | int, ...]

# The core schema of YAML 1.2.2, section 10.3.2.
NULL = re.compile(r"(?:null|Null|NULL|~|)\Z")
TRUE = re.compile(r"(?:true|True|TRUE)\Z")
FALSE = re.compile(r"(?:false|False|FALSE)\Z")
INT = re.compile(r"[-+]?[0-9]+\Z")
OCTAL = re.compile(r"0o[0-7]+\Z")
HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")


def parse_yaml(text: str, name: str, most: int = MAX_BYTES) -> tuple[object, dict[Path, int]]:
    """The value of one YAML document, and the line (from 1) on which each path stands.

    Error messages call it `name`. It may have `most` bytes; JSON is YAML too.
    """
    # Not every text of a command line can be encoded; yaml says so below.
    if len(text.encode(errors="replace")) > most:
        raise RecipeError(f"{name}: larger than {most:,} bytes")
    try:
        _refuse_surprises(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    lines: dict[Path, int] = {}
    return (None if node is None else _value(node, (), name, lines)), lines


def _refuse_surprises(text: str, name: str) -> None:
    """Look at the events, before composing: it shares the nodes of aliases and calls itself for depth."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
        if isinstance(event, yaml.AliasEvent):
            raise RecipeError(f"{name}: {line}alias *{event.anchor}; write the value out")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
            raise RecipeError(f"{name}: {line}tag {event.tag}; quote a value that is meant as text")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecipeError(f"{name}: {line}nested too deep (at most {MAX_DEPTH} levels)")


def _value(node: yaml.Node, path: Path, name: str, lines: dict[Path, int]) -> object:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), name, lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        table: dict[str, object] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeError(f"{name}: line {key_line}: a key is a word, not a list or a table")
            key = str(key_node.value)
            if key in table:
                raise RecipeError(f"{name}: line {key_line}: key {key!r} is given twice; remove one")
            lines[(*path, key)] = key_line
            table[key] = _value(value_node, (*path, key), name, lines)
        return table
    is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return scalar(str(node.value)) if is_plain else str(node.value)


def scalar(text: str) -> str | int | float | bool | None:
    """A plain scalar by the rules of YAML 1.2: `1e-4` is a number, `no` is a word."""
    if len(text) > MAX_NUMBER_CHARS:
        return text
    if NULL.match(text):
        return None
    if TRUE.match(text):
        return True
    if FALSE.match(text):
        return False
    if INT.match(text):
        return int(text)
    if OCTAL.match(text) or HEX.match(text):
        return int(text, 0)
    if FLOAT.match(text):
        return float(text)
    return text
