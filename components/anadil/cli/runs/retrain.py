"""`anadil retrain`: teach the registry's champion the text and chats that came since, on this machine."""

import argparse
import logging
import os
import shlex
from typing import TYPE_CHECKING

from anadil.cli import options as cli_options
from anadil.cli.output import print_data, print_result
from anadil.cli.runs.run import after_failure, failure_of, run_recipe, with_root, work_of
from anadil.core.errors import AnadilError, DataError, GateError, Stopped
from anadil.core.stages import AWAITED, FLOW
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import Event, notify
from anadil.runtime.run_record import STOPPED

if TYPE_CHECKING:
    from anadil.retrain.resolve import Resolution
    from anadil_pipelines.laptop import StepResults

log = logging.getLogger(__name__)


def add_retrain(command: argparse.ArgumentParser) -> None:
    """Add `anadil retrain`."""
    command.description = (
        f"{command.description}. It asks the registry for the champion, compares the inputs with the files that the champion has read, and "
        "runs the pipeline on what is new, from the champion's weights or its last plateau checkpoint. Where only chats are "
        "new, it begins with finetuning; without a new file it ends at once."
    )
    cli_options.add_recipe_argument(command)
    cli_options.add_work_option(command)
    cli_options.add_set_option(command)
    cli_options.add_runner_option(command)
    help_text = "train on all inputs from the base, and compare the result with the champion"
    command.add_argument("--from-base", action="store_true", help=help_text)
    help_text = "print the plan of the retraining, as `anadil plan` does, and run nothing"
    command.add_argument("--plan", action="store_true", help=help_text)
    help_text = "print the recipe of the retraining, and run nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    cli_options.add_output_option(command)
    command.set_defaults(command=_retrain, until=FLOW[-1].name)


def _retrain(options: argparse.Namespace) -> int:
    from anadil.retrain.exclusive import exclusive
    from anadil.retrain.lineage import champion_name

    recipe = with_root(load_recipe(options.recipe, options.set), work_of(options))
    # The last step moves the alias there. It would look for a database beside the artifacts, which may lie in a bucket.
    if not recipe.tracking.uri and not os.environ.get("MLFLOW_TRACKING_URI"):
        tracking = recipe.tracking.model_copy(update={"uri": f"sqlite:///{work_of(options)}/mlflow.db"})
        recipe = recipe.model_copy(update={"tracking": tracking})
    if options.dry_run:
        derived = _resolve(recipe, options).recipe.model_dump(mode="json")
        print_data(derived, "json" if options.output == "json" else "yaml")
        return 0
    if options.plan:
        return _print_plan(recipe, options)
    name, _ = champion_name(recipe)
    # Before the registry is asked: another retraining may be about to move the champion.
    with exclusive(str(recipe.storage.root), name):
        try:
            return _run_alone(recipe, options)
        except AnadilError as error:
            # Nobody reads what a schedule prints.
            if not isinstance(error, Stopped):
                notify(Event(kind="failed", run=name, stage="retrain", message=str(error)))
            raise


def _print_plan(recipe: Recipe, options: argparse.Namespace) -> int:
    from anadil.plan.view import plan_lines
    from anadil.preflight.memory import week_plan

    resolution = _resolve(recipe, options)
    if resolution.state == "nothing" or resolution.keeps_model:
        if resolution.keeps_model:
            log.info(
                "no new text, so nothing is trained but the adapter, which a plan has no time and price of"
            )
        print_result({}, (), options.output)
        return 0
    plan = week_plan(resolution.recipe, options.recipe)
    print_result(plan.as_json(), plan_lines(plan), options.output)
    return 0


def _resolve(recipe: Recipe, options: argparse.Namespace) -> "Resolution":
    from anadil.retrain.resolve import resolve

    # Without the same values and place the first model would be another one, or lie elsewhere.
    given = [word for each in options.set for word in ("--set", each)]
    given += ["--work", options.work] if options.work != cli_options.WORK else []
    argument = shlex.join([options.recipe, *given])
    resolution = resolve(recipe, argument=argument, from_base=options.from_base)
    for line in resolution.lines:
        log.info("%s", line)
    return resolution


def _run_alone(recipe: Recipe, options: argparse.Namespace) -> int:
    from anadil.preflight.memory import refuse_dear

    resolution = _resolve(recipe, options)
    if left := resolution.unreleased_recipe():
        log.info("the champion's retraining was stopped before its last step was recorded; finishing it")
        if code := _end(recipe, run_recipe(left, options)):
            return code
    if resolution.state == "nothing":
        return 0
    refuse_dear(resolution.recipe)
    return _end(recipe, run_recipe(resolution.recipe, options))


def _end(recipe: Recipe, steps: "StepResults") -> int:
    from anadil.release.run import read_release
    from anadil.retrain.lineage import champion_version

    if steps.exit_code in (0, None):
        record = read_release(steps.uris["release"])
        # The stage has finished whatever the gate said; its verdict is the end of the command.
        code, reason = 0, " ".join(record.reasons)
        if record.outcome == "refused":
            code = GateError.exit_code
        elif record.outcome == "champion" and (now := champion_version(recipe)) != record.version:
            # The same text reuses the artifact `release`, which knows of no rollback.
            reason = (
                f"Version {record.version} became champion in an earlier run of the same text, and was rolled back since; "
                f"version {now or 'none'} stays champion. Only anadil promote --as champion makes it champion again."
            )
        log.log(logging.ERROR if code else logging.INFO, "%s", reason)
        return code
    if steps.exit_code not in STOPPED:
        root = str(recipe.storage.root)
        step, why = failure_of(root, steps.run)
        is_refused = step in AWAITED and steps.exit_code == DataError.exit_code
        notify(Event(
            kind="refused" if is_refused else "failed", run=steps.run, stage=step,
            message=why or f"exit code {steps.exit_code}", resume=after_failure(root, steps.run),
        ))  # fmt: skip
    return steps.exit_code
