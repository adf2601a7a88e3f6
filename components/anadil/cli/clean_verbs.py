"""`anadil clean explain | diff | verify`: what clean did, and whether it is still there."""

import argparse
import sys
from typing import Any

from anadil.cli.output import add_output_option, print_data, print_json, print_table
from anadil.core.stages import STAGES


def add_clean_verb(name: str, commands: Any, text: str) -> None:
    """Add one of the commands with its options."""
    command = commands.add_parser(name, help=text, description=text)
    ADDED[name](command)


def _add_explain(command: argparse.ArgumentParser) -> None:
    from anadil.runtime.entry_point import add_recipe_options

    command.add_argument(
        "source", metavar="SOURCE", help="file and place, such as news.jsonl:17, as rejected/ has it"
    )
    add_recipe_options(command)
    text = "the inputs, if not those of the recipe"
    command.add_argument("--raw", nargs="+", default=[], metavar="URI", help=text)
    text = "a corpus that was made of them: tells what the document duplicates; SOURCE may be an id"
    command.add_argument("--corpus", metavar="URI", help=text)
    add_output_option(command, "yaml", "json")
    command.set_defaults(command=explain)


def _add_diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("first", metavar="A", help="corpus, directory or s3:// URI")
    command.add_argument("second", metavar="B", help="another one")
    add_output_option(command)
    command.set_defaults(command=diff)


def _add_verify(command: argparse.ArgumentParser) -> None:
    command.add_argument("corpus", metavar="CORPUS", help="directory or s3:// URI")
    add_output_option(command)
    command.set_defaults(command=check_corpus)


ADDED = {"explain": _add_explain, "diff": _add_diff, "verify": _add_verify}


def explain(options: argparse.Namespace) -> int:
    """Print every step for one document of the inputs.

    Raises:
        DataError: There is no such document.
    """
    import tempfile
    from pathlib import Path

    from anadil.artifacts.prefetch import fetch
    from anadil.clean.explain import explain_record, find_record, in_corpus
    from anadil.clean.judge_record import Settings
    from anadil.clean.lists import compile_lists
    from anadil.recipe.load import load_recipe
    from anadil.runtime.job import external_files, external_side_files

    recipe, stage = load_recipe(options.recipe, options.set), STAGES["clean"]
    source, rows = options.source, []
    if options.corpus:
        rows = in_corpus(fetch(options.corpus, "corpus")[0], source)
        source = rows[0]["source"] if rows else source
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        compile_lists(recipe, external_side_files(stage, recipe), Path(folder))
        settings = Settings(recipe=recipe, lists_folder=Path(folder))
        raw = find_record(external_files(stage, recipe, options.raw), source, settings)
        steps = explain_record(raw, settings)
    print_data(steps | {"in_corpus": rows} if options.corpus else steps, options.output)
    return 0


def diff(options: argparse.Namespace) -> int:
    """Print what differs between two corpora."""
    from anadil.artifacts.prefetch import fetch
    from anadil.clean.diff import compare_corpora

    found = compare_corpora(*(fetch(uri, "corpus")[0] for uri in (options.first, options.second)))
    if options.output == "json":
        print_json(found)
        return 0
    for name, (before, after) in found["counts"].items():
        sys.stdout.write(f"{name:<28} {before:>14,} {after:>14,} {after - before:>+14,}\n")
    for change in found["changed"]:
        sys.stdout.write(
            f"{change['before']} -> {change['after']}: {change['documents']:,} documents, such as "
            f"{', '.join(change['examples'])}\n"
        )
    for name in ("other_text", "only_in_first", "only_in_second"):
        sys.stdout.write(f"{name.replace('_', ' '):<28} {found[name]:>14,}\n")
    return 0


def check_corpus(options: argparse.Namespace) -> int:
    """Compare a corpus with its manifest, its rows and its counts.

    Raises:
        IntegrityError: Something differs.
    """
    from anadil.artifacts.prefetch import fetch
    from anadil.clean.verify import verify_corpus

    print_table(verify_corpus(*fetch(options.corpus, "corpus")), options.output)
    return 0
