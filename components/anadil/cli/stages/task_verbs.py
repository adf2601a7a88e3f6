"""`anadil tasks list` and `tasks fetch`: benchmarks of a language, and their data for machines without network."""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from anadil.cli.options import add_output_option, add_recipe_argument, add_set_option, place
from anadil.cli.output import print_result
from anadil.core.errors import DataError
from anadil.core.table import Table
from anadil.tasks.native import languages, native_tasks
from anadil.text.language import find_language
from anadil.text.language_data import UnknownLanguageError

log = logging.getLogger(__name__)


def add_list(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil tasks list`."""
    text = "id of a language, or a pack (default: list the languages that have tasks)"
    command.add_argument("language", metavar="LANGUAGE", nargs="?", help=text)
    add_output_option(command)
    command.set_defaults(command=list_tasks)


def add_fetch(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil tasks fetch`."""
    command.description = "Fetch the data of a recipe's tasks into the cache of Hugging Face (HF_HOME)."
    add_recipe_argument(command)
    text = "also write the text of each question, as evaluate.task_items for clean.decontaminate"
    command.add_argument("--items", type=place, metavar="FILE.jsonl", help=text)
    add_set_option(command)
    command.set_defaults(command=fetch, needs="tasks")


def list_tasks(options: argparse.Namespace) -> int:
    """Print the tasks of a language, or the languages that have some."""
    if options.language is None:
        names = {code: row.name for code in languages() if (row := find_language(code))}
        print_result(names, [f"{code:<10}{name}" for code, name in names.items()], options.output)
        return 0
    try:
        rows = [each.row for each in native_tasks(options.language)]
    except UnknownLanguageError as error:
        raise DataError(f"{options.language!r}: {error}") from None
    if not rows and options.output != "json":
        raise DataError(
            f"no benchmark has tasks in {options.language!r}: `anadil tasks list` lists the languages"
        )
    cells = [
        (
            row["task"], row["benchmark"], row["measures"], _number(row["items"], ","), _number(row["chance"], "g"),
            "yes" if row["auto"] else f"no: {row['why_not']}",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("task", "benchmark", "measures", "questions", "chance", "auto")
    print_result(rows, Table("", columns, cells, words=(1, 2, 5)).lines(), options.output)
    return 0


def fetch(options: argparse.Namespace) -> int:
    """Fetch the data, and print how many questions each task has."""
    from anadil.core.files import write_atomic
    from anadil.core.stages import STAGES
    from anadil.recipe.load import load_recipe
    from anadil.runtime.job import external_side_files

    recipe = load_recipe(options.recipe, options.set)
    from anadil.tasks.native import KEY
    from anadil.tasks.run import load_tasks, write_items

    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        uris = external_side_files(STAGES["tasks"], recipe).get(KEY, ())
        _, tasks = load_tasks(recipe, uris, Path(folder))
        items = Path(folder) / "items.jsonl"
        counts = write_items(tasks, items)
        if options.items:
            write_atomic(Path(options.items), items.read_text(encoding="utf-8"))
    sys.stdout.writelines(f"{name}: {counts[name]:,} questions\n" for name in tasks)
    if not tasks:
        log.warning("the recipe has no tasks")
    return 0


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)
