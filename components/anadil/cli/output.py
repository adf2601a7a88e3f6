"""Printing on stdout: JSON, YAML, tables and lines."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from anadil.core.format import JSON_CONTROLS, visible
from anadil.core.table import Table


def print_json(data: Any) -> None:
    """Data as JSON."""
    print(json.dumps(data, ensure_ascii=False, indent=2).translate(JSON_CONTROLS))


def print_lines(lines: Iterable[str]) -> None:
    """Lines for people; what names and values hold ends none of them."""
    for line in lines:
        print(visible(line))


def print_data(data: Any, output: str) -> None:
    """Data as YAML or JSON."""
    if output == "json":
        print_json(data)
        return
    import yaml

    # Long lines are not folded: a manifest's commands can be copied.
    sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=10_000))


def print_result(data: Any, lines: Iterable[str], output: str) -> None:
    """Data as JSON, else its lines for people."""
    if output == "json":
        print_json(data)
    else:
        print_lines(lines)


def print_table(rows: Mapping[str, str], output: str) -> None:
    """Names and values as two columns, or as JSON."""
    table = Table("", ("", "value"), [*rows.items()])
    print_result(rows, () if output == "json" else table.lines(), output)
