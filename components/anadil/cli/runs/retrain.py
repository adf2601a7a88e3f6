"""`anadil retrain`: teach the registry's champion the text and chats that came since, on this machine."""

import argparse
import logging
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from anadil.cli.options import (
    WORK,
    add_output_option,
    add_recipe_argument,
    add_runner_option,
    add_set_option,
    add_work_option,
)
from anadil.cli.output import print_data, print_json, print_lines
from anadil.cli.runs.run import after_failure, run_recipe, with_root, work_of
from anadil.core.errors import AnadilError, IntegrityError, Stopped
from anadil.core.stages import FLOW
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import Event, notify

if TYPE_CHECKING:
    from anadil.preflight.week_cost import WeekCost
    from anadil.retrain.ledger import Ledger, Retraining
    from anadil.retrain.resolve import Resolution

log = logging.getLogger(__name__)


def add_retrain(name: str, commands: Any, text: str) -> None:
    """Add `anadil retrain`."""
    about = (
        f"{text}. It asks the registry for the champion, compares the inputs with the files that the champion has read, and "
        "runs the pipeline on what is new, from the champion's weights or its last plateau checkpoint. Where only chats are "
        "new, it begins with finetuning; without a new file it ends at once."
    )
    command = commands.add_parser(name, help=text, description=about)
    add_recipe_argument(command)
    add_work_option(command)
    add_set_option(command)
    add_runner_option(command)
    help_text = "train on all inputs from the base, and compare the result with the champion"
    command.add_argument("--from-base", action="store_true", help=help_text)
    help_text = "print documents, tokens, steps, hours and money of the retraining and of a run from the base, and run nothing"
    command.add_argument("--plan", action="store_true", help=help_text)
    help_text = "print the recipe of the retraining, and run nothing"
    command.add_argument("--dry-run", action="store_true", help=help_text)
    add_output_option(command)
    command.set_defaults(command=_retrain, until=FLOW[-1].name)


def _retrain(options: argparse.Namespace) -> int:
    from anadil.retrain.champion import champion_name
    from anadil.retrain.exclusive import exclusive
    from anadil.retrain.ledger import Ledger

    recipe = with_root(load_recipe(options.recipe, options.set), work_of(options))
    recipe = _with_registry(recipe, options)
    if options.dry_run:
        derived = _resolve(recipe, options).recipe.model_dump(mode="json")
        print_data(derived, "json" if options.output == "json" else "yaml")
        return 0
    if options.plan:
        return _print_plan(recipe, options)
    name, _ = champion_name(recipe)
    root = str(recipe.storage.root)
    # Before the registry is asked: another retraining may be about to move the champion.
    with exclusive(root, name), _errors_notified(name):
        return _run_alone(recipe, options, Ledger(root, name))


@contextmanager
def _errors_notified(name: str) -> Iterator[None]:
    """Tell people of a retraining that an error ends: nobody reads what a schedule prints."""
    try:
        yield
    except AnadilError as error:
        if not isinstance(error, Stopped):
            notify(Event(kind="failed", run=name, stage="retrain", message=str(error)))
        raise


def _with_registry(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """Return the recipe with the registry that the champion is asked of."""
    # The last step moves the alias there. It would look for a database beside the artifacts, which may lie in a bucket.
    if recipe.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI"):
        return recipe
    tracking = recipe.tracking.model_copy(update={"uri": f"sqlite:///{work_of(options)}/mlflow.db"})
    return recipe.model_copy(update={"tracking": tracking})


def _print_plan(recipe: Recipe, options: argparse.Namespace) -> int:
    with _priced(is_from_base=options.from_base):
        # Both runs are planned, whichever is asked for.
        options.from_base = False
        cost = _cost(recipe, _resolve(recipe, options))
    if options.output == "json":
        print_json(asdict(cost))
    else:
        print_lines(cost.lines())
    return 0


def _refuse_dear(recipe: Recipe, resolution: "Resolution", options: argparse.Namespace) -> None:
    """Refuse a retraining that costs more than the recipe allows, before a GPU is asked for."""
    from anadil.preflight.week_cost import refuse_dear

    if recipe.retrain and recipe.retrain.max_usd is not None:
        with _priced(is_from_base=options.from_base):
            cost = _cost(recipe, resolution)
        refuse_dear(recipe, cost.from_base if options.from_base else cost.week)


@contextmanager
def _priced(*, is_from_base: bool) -> Iterator[None]:
    """Replace the remedy of an artifact that is gone where only the price of a run from the base needs it."""
    try:
        yield
    except IntegrityError as error:
        if not is_from_base:
            raise
        from anadil.retrain.lineage import ANEW

        # A run from the base is what the error asks for.
        fault = str(error).removesuffix(ANEW)
        raise IntegrityError(
            f"a run from the base is priced by the champion's artifacts. {fault}, or run it without --plan and without a "
            "limit: --set retrain.max_usd=null"
        ) from None


def _cost(recipe: Recipe, resolution: "Resolution") -> "WeekCost":
    from anadil.preflight.week_cost import week_cost
    from anadil.retrain.lineage import lineage_of
    from anadil.retrain.new_files import compare_chats, compare_inputs

    lineage = resolution.lineage or lineage_of(resolution.champion, [str(recipe.storage.root)])
    inputs = resolution.inputs or compare_inputs(recipe, lineage.files)
    chats = resolution.chats if resolution.lineage else compare_chats(recipe, lineage.chats)
    return week_cost(recipe, resolution.recipe, lineage, inputs, chats)


def _resolve(recipe: Recipe, options: argparse.Namespace) -> "Resolution":
    from anadil.retrain.resolve import resolve

    # Without the same values and place the first model would be another one, or lie elsewhere.
    given = [word for each in options.set for word in ("--set", each)]
    given += ["--work", options.work] if options.work != WORK else []
    resolution = resolve(
        recipe,
        argument=shlex.join([options.recipe, *given]),
        from_base=options.from_base,
    )
    for line in resolution.lines:
        log.info("%s", line)
    return resolution


def _run_alone(recipe: Recipe, options: argparse.Namespace, ledger: "Ledger") -> int:
    """Retrain as the only one, and record it in the ledger; return the exit code."""
    from anadil.retrain.champion import champion_version
    from anadil.retrain.ledger import Retraining, as_registered, ended, failure_of, lines_of_past

    root, now, past = str(recipe.storage.root), time.time(), ledger.read()
    for line in lines_of_past(past, now):
        log.info("%s", line)
    resolution = _resolve(recipe, options)
    if past and (code := _finish(past[-1], resolution, options, ledger)):
        return code
    champion, num_files = resolution.champion.version, resolution.num_files
    retraining = Retraining(id=str(os.getpid()), started=now, champion=champion, num_files=num_files)
    with ledger.recorded(retraining) as endings:
        if resolution.state == "nothing":
            endings.append(ended(retraining, 0))
            return 0
        _refuse_dear(recipe, resolution, options)
        steps = run_recipe(resolution.recipe, options)
        step, why = failure_of(root, steps.run) if steps.exit_code else ("", "")
        reason = f"{step}: {why}" if step else ""
        release = steps.uris.get("release", "")
        end = ended(retraining, steps.exit_code, release=release, step=step, reason=reason)
        if end.outcome == "champion":
            end = as_registered(end, champion_version(recipe))
        endings.append(end)
    if end.outcome in ("failed", "text refused"):
        kind: Literal["failed", "refused"] = "failed" if end.outcome == "failed" else "refused"
        notify(Event(
            kind=kind, run=steps.run, stage=step, message=why or f"exit code {steps.exit_code}",
            resume=after_failure(root, steps.run),
        ))  # fmt: skip
    if end.outcome in ("champion", "challenger", "refused"):
        log.log(logging.ERROR if end.exit_code else logging.INFO, "%s", end.reason)
    return end.exit_code or 0


def _finish(
    last: "Retraining", resolution: "Resolution", options: argparse.Namespace, ledger: "Ledger"
) -> int:
    """Record the last retraining where it was killed after its result had become the champion; return the exit code."""
    from anadil.retrain.ledger import ended
    from anadil.retrain.unfinished import unfinished_recipe

    root = str(resolution.recipe.storage.root)
    left = unfinished_recipe(root, last, resolution.champion)
    if left is None:
        return 0
    log.info(
        "the last retraining was stopped after its result had become the champion; finishing its last step"
    )
    with ledger.recorded(last) as endings:
        steps = run_recipe(left, options)
        end = ended(last, steps.exit_code, release=steps.uris.get("release", ""))
        endings.append(end)
    log.info("%s", end.reason)
    return end.exit_code or 0
