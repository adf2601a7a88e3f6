"""`anadil run`: the whole pipeline on this machine."""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from anadil.cli.doctor.local import require_packages
from anadil.cli.output import add_output_option, place, print_table
from anadil.core.errors import INTERRUPTED, Stopped
from anadil.core.stages import BUILT_IN, FLOW, STAGES
from anadil.recipe.load import load_recipe
from anadil.runtime.entry_point import add_remake_option
from anadil.runtime.run_record import recipe_name

log = logging.getLogger(__name__)

WORK = "anadil-work"
"""Default directory of `anadil run`."""


def add_run(name: str, commands: Any, text: str) -> None:
    """Add `anadil run`."""
    run = commands.add_parser(name, help=text, description=f"{text}; finished artifacts are reused")
    run.add_argument("recipe", nargs="?", default=BUILT_IN, metavar="RECIPE", help=f"default: {BUILT_IN}")
    run.add_argument(
        "--work",
        type=place,
        default=WORK,
        metavar="DIR",
        help="where everything is written (default: %(default)s)",
    )
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the recipe"
    )
    text = "steps as processes of this Python, or in their images (default: %(default)s)"
    run.add_argument("--runner", choices=["process", "docker"], default="process", help=text)
    run.add_argument(
        "--until", choices=list(STAGES), default=FLOW[-1].name, metavar="STAGE", help="last stage to run"
    )
    add_remake_option(run)
    add_output_option(run)
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from anadil.artifacts.local_directory import check_writable
    from anadil.plan.instances import ram_bytes
    from anadil.preflight.inputs import inspect_base, inspect_clean_cost, inspect_files
    from anadil.runtime.job import is_left_out
    from anadil.runtime.remake import allow_remake
    from anadil.runtime.threads import num_cores

    if options.remake:
        allow_remake()
    recipe = load_recipe(options.recipe, options.set)
    work = Path(os.path.realpath(options.work))
    check_writable(work, "--work")
    if recipe.storage.root and "://" not in recipe.storage.root:
        check_writable(Path(recipe.storage.root), "storage.root")
    stages = FLOW[: FLOW.index(STAGES[options.until]) + 1]
    for stage in stages:
        if stage.name != options.until and is_left_out(stage, recipe):
            why = (
                f"{stage.only_if} is not set"
                if stage.only_if
                else f"{stage.files} names no {stage.files_flag}"
            )
            log.info("%s: left out, because %s", stage.name, why)
            continue
        if stage.files:  # what is wrong with it should be reported now, not after hours of training
            inspect_files(stage, recipe).say()
    inspect_clean_cost(recipe, ram_bytes(), num_cores()).say(logging.INFO)
    if any("base" in stage.sections for stage in stages):
        inspect_base(recipe, chats=STAGES["finetune"] in stages).say(logging.INFO)
    if STAGES["tasks"] in stages and recipe.evaluate.tasks:
        from anadil.preflight.tasks import inspect_tasks

        inspect_tasks(recipe).say()
    if STAGES["pretrain"] in stages:
        from anadil.plan.preflight import check_fits

        log.debug("%s", check_fits(recipe, here=True, then=[stage.name for stage in stages]))
    require_packages("pipelines" if options.runner == "docker" else "laptop")
    if recipe.storage.root is None:
        storage = recipe.storage.model_copy(update={"root": str(work)})
        recipe = recipe.model_copy(update={"storage": storage})
    work.mkdir(parents=True, exist_ok=True)
    from anadil.plan.plan_file import plan_as_file
    from anadil.preflight.clean_cost import estimated_tokens
    from anadil_pipelines.laptop import run_here

    name = recipe_name(options.recipe)
    files = (
        plan_as_file(recipe, name, here=True, tokens=estimated_tokens(recipe))
        if STAGES["pretrain"] in stages
        else {}
    )
    steps = run_here(recipe, work, options.runner, options.until, name, files)
    if steps.exit_code in (INTERRUPTED, Stopped.exit_code):
        return steps.exit_code  # the step has said so; nothing is to be corrected
    if steps.exit_code:
        log.error("stopped at a failed step; correct it and run the same command again to resume from there")
        return steps.exit_code
    result = dict(steps.uris)
    if "report" in result:
        result["report"] = f"{result['report']}/report.html"
    print_table(result, options.output)
    sys.stdout.flush()  # so that on a terminal the summary is what stands last
    from anadil.cli.runs.run_summary import summary_lines

    for line in summary_lines(recipe, steps.uris, f"sqlite:///{work}/mlflow.db", steps.spool):
        log.info("%s", line)
    return 0
