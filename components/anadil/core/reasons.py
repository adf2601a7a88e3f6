"""Faults of a value in words: pydantic's kinds of mistakes as sentences of ours."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

REASONS = {
    "missing": "is missing",
    "int": "must be a whole number",
    "float": "must be a number",
    "decimal": "must be a number",
    "finite_number": "must be a finite number",
    "string": "must be text; put quotes around it",
    "bool": "must be true or false",
    "list": "must be a list, such as [a, b]",
    "tuple": "must be a list, such as [a, b]",
    "set": "must be a list, such as [a, b]",
    "dict": "must be a table of keys",
    "model": "must be a table of keys",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
}
"""Kind of mistake, or what it begins with before `_type` or `_parsing` -> the reason, with the limits of its context."""
LENGTHS = {
    "too_short": ("at least", "min_length"),
    "string_too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
    "string_too_long": ("at most", "max_length"),
}


def reason_of(mistake: Mapping[str, Any]) -> str:
    """Reason of one of `ValidationError.errors()`, for a message that names its key before and the value behind.

    pydantic's own words stay where the kind is not known here.
    """
    kind, context = str(mistake["type"]), mistake.get("ctx") or {}
    if kind in LENGTHS:
        side, key = LENGTHS[kind]
        count = context[key]
        noun = "character" if kind.startswith("string") else "item"
        return f"must have {side} {count} {noun}{'' if count == 1 else 's'}"
    reason = REASONS.get(kind) or REASONS.get(re.split(r"_(?:type|parsing|from|attributes)", kind)[0])
    if reason is None:
        return str(mistake["msg"]).removeprefix("Value error, ")
    whole = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in context.items()
    }
    return reason.format(**whole)


def first_mistake(error: "ValidationError") -> str:
    """`key: reason (got value)` of the first mistake, for a message with the file before and the remedy behind."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    got = "" if first["type"] == "missing" else f" (got {str(first['input'])[:40]!r})"
    return f"{where}: {reason_of(first)}{got}"
