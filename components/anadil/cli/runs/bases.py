"""`anadil bases`: candidates for a base, measured on the recipe's text."""

import argparse
import logging
from pathlib import Path

from anadil.cli import options as cli_options
from anadil.cli.output import print_result
from anadil.cli.runs.run import with_root, work_of
from anadil.core.files import write_atomic
from anadil.core.format import MIB
from anadil.core.install import require_packages
from anadil.recipe.load import load_recipe
from anadil.recipe.packages import refuse_not_installed
from anadil.runtime.run_record import recipe_name

log = logging.getLogger(__name__)

DESCRIPTION = """Measure candidates for a base on the recipe's held-out text: bits per byte of the language and of English, tokens a
word, cost of a billion words, licence, and which language each one writes. With --trial each one is also trained briefly, at
equal compute. The recipe's corpus is made if it is not there. What was
measured is kept in --work. A candidate that cannot be taken is listed with its reason, and the exit code says which kind
of reason."""
TEXT_BYTES, TRIAL_PERCENT = 200_000, 1.0


def add_bases(command: argparse.ArgumentParser) -> None:
    """Add `anadil bases`."""
    command.description = DESCRIPTION
    cli_options.add_recipe_argument(command)
    text = "hub id, directory or built-in base, as base.model. ID@REVISION pins a hub model"
    command.add_argument("candidates", nargs="+", metavar="CANDIDATE", help=text)
    text = "held-out text that is scored, in bytes of each language (default: %(default)s)"
    command.add_argument(
        "--text-bytes", type=cli_options.number(1_000, 256 * MIB), default=TEXT_BYTES, metavar="N", help=text
    )
    text = "also write the comparison as a page, with all texts that the candidates wrote"
    command.add_argument("--page", type=cli_options.place, metavar="FILE.html", help=text)
    text = "train each candidate with this share of the recipe's compute, in per cent (default: %(const)s), and extrapolate"
    percent = cli_options.number(0.001, 100, whole=False)
    command.add_argument(
        "--trial", type=percent, nargs="?", const=TRIAL_PERCENT, metavar="PERCENT", help=text
    )
    cli_options.add_work_option(command)
    cli_options.add_set_option(command)
    cli_options.add_output_option(command)
    command.set_defaults(command=run_bases, needs="evaluate")


def run_bases(options: argparse.Namespace) -> int:
    """Measure the candidates and print the comparison. The exit code is 0, or of the first refusal."""
    work = work_of(options)
    recipe = with_root(load_recipe(options.recipe, options.set), work)
    # Imports of torch take seconds, so a mistake in the recipe comes first.
    from anadil.bases.candidates import take
    from anadil.bases.measure import corpora_of, encode, measure, read_texts
    from anadil.bases.view import lines_of, result_of

    work.mkdir(parents=True, exist_ok=True)
    texts = read_texts(recipe, options.text_bytes)
    candidates, refused = take(options.candidates, recipe)
    opened, not_encoded = encode(candidates, texts)
    measured, not_measured = measure(opened, recipe, work / "bases")
    if options.trial and measured:
        require_packages("pretrain")
        refuse_not_installed(recipe, ["pretrain"])
        from anadil.bases.trial import try_candidates

        try_candidates(measured, recipe, options.trial / 100, corpora_of(recipe), work / "bases")
    refused = [*refused, *not_encoded, *not_measured]
    left_out = [each.table() for each in refused]
    result = result_of(recipe_name(options.recipe), recipe, texts, measured, left_out)
    print_result(result, () if options.output == "json" else lines_of(result), options.output)
    if options.page:
        from anadil.bases.page import page_of

        write_atomic(Path(options.page), page_of(result))
        log.info("page: %s", options.page)
    return refused[0].error.exit_code if refused else 0
