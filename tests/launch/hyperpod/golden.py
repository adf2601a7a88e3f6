"""Requests of `anadil cluster`, which `make golden` rewrites."""

import contextlib
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from anadil.cli import main
from tests.kit.compact_yaml import compact
from tests.kit.hyperpod import EXAMPLE

FOLDER = Path(__file__).parents[2] / "golden" / "hyperpod"
COMMANDS = {
    "create": ("create", str(EXAMPLE), "--dry-run"),
    "delete": ("delete", str(EXAMPLE), "--with-file-system", "--dry-run"),
}


def printed(name: str) -> str:
    """What a dry run prints for the example, in fewer lines."""
    options = main.command_parser("cluster").parse_args(["cluster", *COMMANDS[name]])
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert options.command(options) == 0
    return compact(yaml.safe_load(output.getvalue()))


GOLDEN: dict[Path, Callable[[], str]] = {FOLDER / f"{name}.yaml": partial(printed, name) for name in COMMANDS}
