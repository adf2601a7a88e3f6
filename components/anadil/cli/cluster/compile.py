"""`anadil compile`: compile the pipeline to a file for Kubeflow Pipelines."""

import argparse
import logging
from pathlib import Path
from typing import Any

from anadil.cli.options import add_recipe_argument, add_retrain_option, add_set_option
from anadil.preflight.this_machine import require_packages
from anadil.recipe.load import load_recipe

log = logging.getLogger(__name__)


def add_compile(name: str, commands: Any, text: str) -> None:
    """Add `anadil compile`."""
    compiled = commands.add_parser(name, help=text)
    add_recipe_argument(compiled)
    compiled.add_argument(
        "-f", "--file", required=True, type=Path, metavar="FILE", help="file to write, such as pipeline.yaml"
    )
    add_set_option(compiled)
    add_retrain_option(compiled)
    compiled.set_defaults(command=_compile)


def _compile(options: argparse.Namespace) -> int:
    recipe = load_recipe(options.recipe, options.set)
    require_packages("pipelines")
    from anadil_pipelines.adapt import write_pipeline
    from anadil_pipelines.steps import with_clean_workers
    from anadil_pipelines.submit import with_retrain

    recipe = with_retrain(recipe) if options.retrain else recipe
    write_pipeline(with_clean_workers(recipe), options.file, retrains=options.retrain)
    if recipe.storage.root is None:
        log.warning("storage.root is not set; a cluster needs one that every step reaches, such as s3://...")
    print(options.file)
    return 0
