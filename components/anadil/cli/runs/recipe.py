"""`anadil recipe`: list, copy, show and check recipes."""

import argparse
import logging
import shutil
from pathlib import Path

from anadil.cli.options import add_output_option, add_recipe_argument, add_set_option
from anadil.cli.output import print_data, print_json, print_table
from anadil.core.errors import RecipeError

log = logging.getLogger(__name__)


def add_recipe(command: argparse.ArgumentParser) -> None:
    """Add `anadil recipe` with its verbs."""
    verbs = command.add_subparsers(metavar="VERB", required=True)
    listed = verbs.add_parser("list", help="list the shipped recipes")
    add_output_option(listed)
    listed.set_defaults(command=_recipe_list)
    copy = verbs.add_parser("copy", help="copy a shipped recipe to a file of your own")
    copy.add_argument("name", metavar="NAME", help="name of the shipped recipe")
    copy.add_argument("file", metavar="FILE", type=Path, help="file to write, which must not exist")
    copy.set_defaults(command=_recipe_copy)
    show = verbs.add_parser("show", help="print a recipe with every default filled in")
    add_recipe_argument(show)
    add_set_option(show)
    add_output_option(show, "yaml", "json")
    show.set_defaults(command=_recipe_show)
    check = verbs.add_parser("check", help="report every mistake of a recipe, with line and remedy")
    add_recipe_argument(check)
    add_set_option(check)
    check.set_defaults(command=_recipe_check)
    schema = verbs.add_parser("schema", help="print the JSON Schema of a recipe, for editors")
    schema.set_defaults(command=_recipe_schema)


def _recipe_list(options: argparse.Namespace) -> int:
    from anadil.recipe.load import shipped

    first = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in shipped()}
    print_table({name: line.lstrip("# ") for name, line in first.items()}, options.output)
    return 0


def _recipe_copy(options: argparse.Namespace) -> int:
    from anadil.recipe.load import find_recipe

    source = find_recipe(options.name)
    if options.file.exists():
        raise RecipeError(f"{options.file}: exists already; choose another name or remove it")
    options.file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, options.file)
    log.info("%s written; edit it, then run: anadil recipe check %s", options.file, options.file)
    print(options.file)
    return 0


def _recipe_show(options: argparse.Namespace) -> int:
    from anadil.recipe.load import load_recipe

    print_data(load_recipe(options.recipe, options.set).model_dump(mode="json"), options.output)
    return 0


def _recipe_check(options: argparse.Namespace) -> int:
    from anadil.preflight.checks import refuse
    from anadil.recipe.load import load_recipe
    from anadil.runtime.check import RECIPE, PlannedRun

    recipe = load_recipe(options.recipe, options.set)
    refuse(PlannedRun(by=RECIPE, recipe=recipe, here=False))
    print(f"{options.recipe}: no mistakes")
    return 0


def _recipe_schema(options: argparse.Namespace) -> int:  # noqa: ARG001  every command takes its options
    from anadil.recipe.sections import Recipe

    print_json(Recipe.model_json_schema())
    return 0
