"""Options that several commands have."""

import argparse
import math
from collections.abc import Callable
from typing import Any

from anadil.core.stage import Stage
from anadil.core.stages import BUILT_IN, FLOW, STAGES

WORK = "anadil-work"  # Default directory of `anadil run`.


def add_recipe_argument(command: argparse.ArgumentParser, *, built_in: bool = False) -> None:
    """`RECIPE`, the name or file of a recipe; without one `built_in` takes the built-in recipe."""
    text = "name or file of a recipe (`anadil recipe list`)"
    more: dict[str, Any] = {"nargs": "?", "default": BUILT_IN} if built_in else {}
    text += f"; default: {BUILT_IN}" if built_in else ""
    command.add_argument("recipe", metavar="RECIPE", help=text, **more)


def add_set_option(command: argparse.ArgumentParser) -> None:
    """`--set KEY=VALUE`, as often as needed."""
    text = "override a key of the recipe; may be given several times"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def add_work_option(command: argparse.ArgumentParser) -> None:
    """`--work DIR`."""
    text = "directory that everything is written to (default: %(default)s)"
    command.add_argument("--work", type=place, default=WORK, metavar="DIR", help=text)


def add_runner_option(command: argparse.ArgumentParser) -> None:
    """`--runner`: how the steps of a run on this machine are started."""
    text = "run steps as processes of this Python, or in their images (default: %(default)s)"
    command.add_argument("--runner", choices=["process", "docker"], default="process", help=text)


def add_output_option(
    command: argparse.ArgumentParser, *forms: str, text: str = "format of the output (default: %(default)s)"
) -> None:
    """`-o`: a table or JSON, or one of other forms; the first is the default."""
    choices = forms or ("table", "json")
    command.add_argument("-o", "--output", choices=choices, default=choices[0], help=text)


def place(text: str) -> str:
    """Type of an option that names a file or directory of this machine; an empty one is refused."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a path")
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is no local path; give a path, and copy the files")
    return text


def number(low: float, high: float = math.inf, *, whole: bool = True) -> Callable[[str], Any]:
    """Type of an option that takes a number from `low` to `high`, which may be written as 2.5e9."""

    def parse(text: str) -> float:
        try:
            value = int(text) if text.isdecimal() else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or value == math.inf or (whole and value % 1):
            span = f"from {low:,} up" if high == math.inf else f"from {low:,} to {high:,}"
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' * whole}number {span}")
        return int(value) if whole else value

    return parse


def add_until_option(command: argparse.ArgumentParser, text: str) -> None:
    """`--until STAGE`; the default is the last stage."""
    command.add_argument("--until", choices=list(STAGES), default=FLOW[-1].name, metavar="STAGE", help=text)


def stages_until(name: str) -> tuple[Stage, ...]:
    """The stages of the flow up to one."""
    return FLOW[: FLOW.index(STAGES[name]) + 1]


def add_retrain_option(parser: argparse.ArgumentParser) -> None:
    """`--retrain`, of the commands of a pipeline."""
    text = "teach the registry's champion the text and chats that came since, as `anadil retrain` does"
    parser.add_argument("--retrain", action="store_true", help=text)
