"""`anadil compare RUN RUN`: two runs side by side."""

import argparse
from typing import Any

from anadil.cli.options import add_output_option
from anadil.cli.output import print_json, print_lines
from anadil.cli.runs.list import add_run_places
from anadil.release.compare.comparison import compare

RUN = "a work directory (its latest run), the URI of a report, scores, adapter or model, or an id of `anadil list`"


def add_compare(name: str, commands: Any, text: str) -> None:
    """Add the command's options."""
    command = commands.add_parser(name, help=text, description=f"{text}; differences are B minus A")
    command.add_argument("a", metavar="A", help=RUN)
    command.add_argument("b", metavar="B", help="the other run")
    add_run_places(command)
    add_output_option(command)
    command.set_defaults(command=show_comparison)


def show_comparison(options: argparse.Namespace) -> int:
    """Print a comparison."""
    result = compare(options.a, options.b, work=options.work, root=options.root)
    if options.output == "json":
        print_json(result.to_dict())
    else:
        print_lines(result.lines())
    return 0
