"""`anadil corpus import`: a corpus that is clean already becomes an artifact, by the stage `clean` without its rules."""

import argparse
import json
import logging
from typing import Any

from anadil.cli.options import add_work_option
from anadil.runtime.entry_point import add_recipe_options, add_source_option

log = logging.getLogger(__name__)


def add_corpus(name: str, commands: Any, text: str) -> None:
    """Add `anadil corpus import`."""
    verbs = commands.add_parser(name, help=text, description=text).add_subparsers(
        metavar="VERB", required=True
    )
    about = (
        "make a corpus of files without changing a text: no rule judges them, near duplicates stay, and only empty documents and "
        "copies are dropped and counted; prints the URI of the corpus"
    )
    command = verbs.add_parser("import", help=text, description=about)
    text = (
        "files, globs, s3:// or hf:// URIs of text: .jsonl, .json, .parquet, .csv, .tsv, .txt, .warc.wet.gz"
    )
    command.add_argument("files", metavar="FILE", nargs="+", help=text)
    command.add_argument(
        "--language", metavar="ID", help="language of the text (default: that of the recipe)"
    )
    add_recipe_options(command)
    add_source_option(command)
    add_work_option(command)
    text = "where to write the artifact; left out, a place under storage.root, else under --work"
    command.add_argument("--out", metavar="URI", help=text)
    command.set_defaults(command=import_corpus)


def import_corpus(options: argparse.Namespace) -> int:
    """Run the stage `clean` on the files, and say what the corpus can be used for."""
    from anadil.cli.runs.run import with_root, work_of
    from anadil.recipe.load import load_recipe
    from anadil.runtime.entry_point import main

    # As a run by such a recipe would name them, so that it finds this corpus.
    key = f"sources.{options.of_source}.inputs" if options.of_source else "clean.inputs"
    values = {"clean.as_is": True, key: options.files}
    values |= {"language": options.language} if options.language else {}
    settings = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    settings += options.set
    recipe = with_root(load_recipe(options.recipe, settings), work_of(options))
    arguments = ["--recipe", options.recipe]
    for each in (*settings, f"storage.root={json.dumps(recipe.storage.root)}"):
        arguments += ["--set", each]
    for option, value in (("--source", options.of_source), ("--out", options.out)):
        arguments += [option, value] if value else []
    code = main("clean", arguments, prog="anadil corpus import", verbose=options.verbose)
    if code == 0:
        log.info(
            "next: anadil tokenizer --corpus URI; a run imports it where its recipe has clean.as_is: true"
        )
    return code
