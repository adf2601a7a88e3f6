"""`anadil retrain`: teach the registry's champion the text that came since, on this machine."""

import argparse
import logging
from typing import Any

from anadil.cli.options import (
    add_output_option,
    add_recipe_argument,
    add_runner_option,
    add_set_option,
    add_work_option,
)
from anadil.cli.output import print_data
from anadil.cli.runs.run import run_recipe, with_root, work_of
from anadil.core.stages import FLOW
from anadil.recipe.load import load_recipe

log = logging.getLogger(__name__)


def add_retrain(name: str, commands: Any, text: str) -> None:
    """Add `anadil retrain`."""
    about = (
        f"{text}. It asks the registry for the champion, compares the inputs with the files that the champion has read, and "
        "runs the pipeline on what is new, from the champion's weights or its last plateau checkpoint. Without new text it "
        "ends at once."
    )
    command = commands.add_parser(name, help=text, description=about)
    add_recipe_argument(command)
    add_work_option(command)
    add_set_option(command)
    add_runner_option(command)
    help_text = "train on all inputs from the base, and compare the result with the champion"
    command.add_argument("--from-base", action="store_true", help=help_text)
    help_text = "print the recipe of the retraining, and run nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    add_output_option(command)
    command.set_defaults(command=_retrain, until=FLOW[-1].name)


def _retrain(options: argparse.Namespace) -> int:
    from anadil.retrain.resolve import resolve

    work = work_of(options)
    recipe = with_root(load_recipe(options.recipe, options.set), work)
    resolution = resolve(
        recipe,
        argument=options.recipe,
        from_base=options.from_base,
        default_tracking=f"sqlite:///{work}/mlflow.db",
    )
    for line in resolution.lines:
        log.info("%s", line)
    if options.dry_run:
        output = "json" if options.output == "json" else "yaml"
        print_data(resolution.recipe.model_dump(mode="json"), output)
        return 0
    if resolution.state == "nothing":
        return 0
    return run_recipe(resolution.recipe, options).exit_code
