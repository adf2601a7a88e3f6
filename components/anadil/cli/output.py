"""What commands print on stdout, and the option that chooses its form."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from anadil.core.format import JSON_CONTROLS, visible


def add_output_option(
    command: argparse.ArgumentParser, *forms: str, text: str = "default: %(default)s"
) -> None:
    """`-o`; the first form is the default.

    Args:
        command: Parser of the command.
        forms: Left out, a table or JSON.
        text: Its help.
    """
    choices = forms or ("table", "json")
    command.add_argument("-o", "--output", choices=choices, default=choices[0], help=text)


def place(text: str) -> str:
    """The type of an option that names a file or directory to write; an empty one is refused."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a path")
    return text


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


def print_table(rows: Mapping[str, str], output: str) -> None:
    """Names and values as two columns, or as JSON."""
    if output == "json":
        print_json(rows)
        return
    width = max(map(len, rows), default=0)
    print_lines(f"{name:<{width}}  {value}" for name, value in rows.items())
