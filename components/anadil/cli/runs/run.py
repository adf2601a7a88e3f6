"""`anadil run`: the whole pipeline on this machine."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.cli.options import (
    add_output_option,
    add_recipe_argument,
    add_runner_option,
    add_set_option,
    add_until_option,
    add_work_option,
    stages_until,
)
from anadil.cli.output import print_table
from anadil.cli.runs.watch import watching
from anadil.core.errors import AnadilError
from anadil.core.stage import Stage
from anadil.core.stages import STAGES
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.entry_point import add_remake_option
from anadil.runtime.job import is_kept
from anadil.runtime.run_record import STOPPED, read_record, recipe_name, record_uri

if TYPE_CHECKING:
    from anadil_pipelines.laptop import StepResults

log = logging.getLogger(__name__)

ADMIT = "admit"
"""Step that refuses text; any other that fails has another cause."""


def add_run(name: str, commands: Any, text: str) -> None:
    """Add `anadil run`."""
    run = commands.add_parser(name, help=text, description=f"{text}; finished artifacts are reused")
    add_recipe_argument(run, built_in=True)
    add_work_option(run)
    add_set_option(run)
    add_runner_option(run)
    add_until_option(run, "last stage to run (default: %(default)s)")
    add_remake_option(run)
    run.add_argument("--watch", action="store_true", help="show the run as a page in a browser meanwhile")
    add_output_option(run)
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    if options.remake:
        from anadil.runtime.remake import allow_remake

        allow_remake()
    recipe = with_root(load_recipe(options.recipe, options.set), work_of(options))
    if not options.watch:
        return run_recipe(recipe, options).exit_code
    with watching(work_of(options)):
        return run_recipe(recipe, options).exit_code


def work_of(options: argparse.Namespace) -> Path:
    """The work directory that a command line names."""
    return Path(os.path.realpath(options.work))


def with_root(recipe: Recipe, work: Path) -> Recipe:
    """Return the recipe with the work directory as `storage.root`, where it names none."""
    if recipe.storage.root is not None:
        return recipe
    return recipe.model_copy(update={"storage": recipe.storage.model_copy(update={"root": str(work)})})


def run_recipe(recipe: Recipe, options: argparse.Namespace) -> "StepResults":
    """Check a recipe, run it on this machine, print its artifacts and what they come to; return the results.

    Args:
        recipe: Its `storage.root` is set.
        options: `recipe`, the name that the user gave, `work`, `runner`, `until` and `output`.
    """
    work, stages = work_of(options), stages_until(options.until)
    _check(recipe, stages, work, options)
    work.mkdir(parents=True, exist_ok=True)
    from anadil.plan.plan import plan_as_file
    from anadil.preflight.text_size import text_of
    from anadil.runtime.flow import flow_of
    from anadil_pipelines.laptop import run_here

    name = recipe_name(options.recipe)
    trains = STAGES["pretrain"] in stages and not is_kept(STAGES["pretrain"], recipe)
    files = plan_as_file(recipe, name, here=True, text=text_of(recipe)) if trains else {}
    steps = run_here(recipe, work, options.runner, options.until, name, files)
    if steps.exit_code in STOPPED:
        return steps  # the step has said so; nothing is to be corrected
    if steps.exit_code:
        log.error("%s", after_failure(str(recipe.storage.root), steps.run))
        return steps
    # Steps that wait for nothing, such as those of sources, run in no order of their own.
    words = [step.writes for step in flow_of(recipe, options.until)]
    result = {word: steps.uris[word] for word in words if word in steps.uris}
    if "report" in result:
        result["report"] = f"{result['report']}/report.html"
    print_table(result, options.output)
    sys.stdout.flush()  # so that the summary comes last on a terminal
    from anadil.cli.runs.run_summary import summary_lines

    for line in summary_lines(recipe, steps.uris, f"sqlite:///{work}/mlflow.db", steps.spool):
        log.info("%s", line)
    return steps


def after_failure(root: str, run: str) -> str:
    """Return what to do after a step that failed."""
    if failure_of(root, run)[0] == ADMIT:
        # The same command would end as this one did.
        return "the champion stays as it is; the next retraining reads these files again, with those that came by then"
    return "a step failed; correct the cause and run the same command again to resume from there"


def failure_of(root: str, run: str) -> tuple[str, str]:
    """Return the step of a run that failed, and why; empty where its record does not say."""
    with suppress(AnadilError, OSError):
        steps = read_record(record_uri(root, run)).steps
        failed = [(name, step.message) for name, step in steps.items() if step.exit_code]
        return failed[-1] if failed else ("", "")
    return "", ""


def _check(recipe: Recipe, stages: Sequence[Stage], work: Path, options: argparse.Namespace) -> None:
    """Refuse in the first second what would fail after hours of training."""
    from anadil.preflight.checks import RUN, PlannedRun, refuse
    from anadil.runtime.flow import is_skipped

    runs = []
    for stage in stages:
        if is_kept(stage, recipe):
            continue
        if is_skipped(stage, recipe, options.until):
            if stage.reads_all or stage.source_key:
                # One body of text has nothing to be compared with, and nobody asked the base to write: no news.
                continue
            why = f"{stage.files} names no {stage.files_flag}"
            log.info(
                "%s: skipped, because %s", stage.name, f"{stage.only_if} is not set" if stage.only_if else why
            )
        else:
            runs.append(stage)
    extra = "pipelines" if options.runner == "docker" else "laptop"
    then = [stage.name for stage in stages]
    refuse(PlannedRun(by=RUN, recipe=recipe, stages=runs, then=then, work=work, extra=extra))
