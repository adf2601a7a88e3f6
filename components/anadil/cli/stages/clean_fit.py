"""`anadil clean fit`: limits of the rules, from good and bad text."""

import argparse
import sys
from typing import Any

from anadil.cli.options import add_output_option
from anadil.cli.output import print_json


def add_fit(name: str, commands: Any, text: str) -> None:
    """Add the command's options."""
    command = commands.add_parser(
        name, help=text, description=f"{text}; prints them as part of a recipe, each with its drop rates"
    )
    files = {"nargs": "+", "required": True, "metavar": "FILE"}
    command.add_argument("--good", **files, help="`.jsonl`, `.txt` or `.parquet` files of text to keep")
    command.add_argument("--bad", **files, help="files of text to drop")
    command.add_argument(
        "--language", default="az", help="of both: an id or the path of a pack; default: %(default)s"
    )
    command.add_argument(
        "--text-field", default="text", help="key or column of the text; default: %(default)s"
    )
    command.add_argument(
        "--max-good-loss",
        type=_share,
        default=0.005,
        metavar="SHARE",
        help="of the good documents, that one limit may drop; default: %(default)s",
    )
    command.add_argument(
        "--max-total-loss",
        type=_share,
        default=0.03,
        metavar="SHARE",
        help="that all limits together may drop; default: %(default)s",
    )
    add_output_option(command, "yaml", "json")
    command.set_defaults(command=fit)


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: 0 up to 1")
    return share


def fit(options: argparse.Namespace) -> int:
    """Print limits.

    Raises:
        DataError: No file, or no text in it.
        RecipeError: There is no such language.
    """
    from anadil.clean.filters.judge import Judge
    from anadil.core.errors import RecipeError
    from anadil.language import fit as fitting
    from anadil.text.language import load_language

    try:
        language = load_language(options.language)
    except ValueError as error:
        raise RecipeError(f"--language: {error}") from None
    judge = Judge(language)
    good, bad = (
        fitting.read_statistics(files, options.text_field, judge, language)
        for files in (options.good, options.bad)
    )
    limits = fitting.fit_limits(
        good, bad, judge, max_good_loss=options.max_good_loss, max_total_loss=options.max_total_loss
    )
    if options.output == "json":
        print_json([each.as_json() for each in limits])
    else:
        sys.stdout.write(fitting.as_recipe(limits, good, bad))
    return 0
