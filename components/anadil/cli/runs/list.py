"""`anadil list`: the runs of a work directory and of a store."""

import argparse
import logging
import shlex
from pathlib import Path
from typing import Any

from anadil.cli.options import add_output_option, place
from anadil.cli.output import print_json
from anadil.core.errors import RecipeError
from anadil.release.runs import COLUMNS, NUMBERS, WORK, list_runs
from anadil.release.text_table import text_table

log = logging.getLogger(__name__)

SHOWN = 20
"""Runs that are read unless more are asked for."""


def add_list(name: str, commands: Any, text: str) -> None:
    """Add the command's options."""
    command = commands.add_parser(name, help=text, description=f"{text}, the latest first")
    add_run_places(command)
    help_text = "maximum number of runs to show, 0: all (default: %(default)s)"
    command.add_argument("--limit", type=int, default=SHOWN, metavar="N", help=help_text)
    add_output_option(command)
    command.set_defaults(command=show_runs)


def add_run_places(command: argparse.ArgumentParser) -> None:
    """`--work` and `--root`: the places of runs."""
    help_text = "work directory of `anadil run` (default: %(default)s)"
    command.add_argument("--work", type=place, default=WORK, metavar="DIR", help=help_text)
    help_text = "storage.root of runs elsewhere: a directory or s3:// URI"
    command.add_argument("--root", metavar="URI", help=help_text)


def show_runs(options: argparse.Namespace) -> int:
    """Print the runs; where there is none, say how to start one."""
    if options.limit < 0:
        raise RecipeError(f"--limit {options.limit}: give a number of runs, or 0 for all")
    runs = list_runs(options.work, options.root, limit=options.limit or None)
    if options.output == "json":
        print_json([run.to_dict() for run in runs])
    elif runs:
        print("\n".join(text_table(COLUMNS, runs.rows(), NUMBERS)))
    if runs.hidden:
        log.info("%d of %d runs; --limit 0 shows all", len(runs), len(runs) + runs.hidden)
    if not runs:
        places = (options.work if Path(options.work).is_dir() else "", options.root)
        where = " and ".join(filter(None, places))
        here = "" if options.work == WORK else f" --work {shlex.quote(options.work)}"
        log.info(
            "no runs%s; start one on built-in data: anadil run%s. Look elsewhere: --work DIR, --root URI",
            f" in {where}" if where else f": {options.work} does not exist",
            here,
        )
    return 0
