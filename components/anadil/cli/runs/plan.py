"""`anadil plan`: what a run needs and costs, before a machine is rented."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from anadil.artifacts.uri import absolute
from anadil.cli import options as cli_options
from anadil.cli.output import print_result
from anadil.core.errors import PreflightError, RecipeError
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.estimate.budget import CheckpointPlan
from anadil.estimate.instances import LOCAL, Machine, machine, machines, this_machine
from anadil.estimate.layout import Layout, possible_layout
from anadil.estimate.speed import calibrate
from anadil.estimate.text_use import TextSize
from anadil.plan.needs import checked_memory
from anadil.plan.plan import PlanRequest, PlanResult, build_plan, choose_layout, request_for
from anadil.plan.view import plan_lines
from anadil.preflight.base_model import refuse_planned_base
from anadil.preflight.checks import refuse
from anadil.preflight.memory import refusal_text
from anadil.preflight.text_size import LAST, text_of
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.release.runs import find_run
from anadil.runtime.check import PLAN, PlannedRun
from anadil.runtime.job import named_files

log = logging.getLogger(__name__)


def add_plan(command: argparse.ArgumentParser) -> None:
    """Add `anadil plan`."""
    add = command.add_argument
    cli_options.add_recipe_argument(command)
    text = "machine type, such as p5.48xlarge (default: cluster.instance, or this machine)"
    add("--instance", metavar="TYPE", help=text)
    add("--nodes", type=cli_options.number(1), metavar="N", help="number of nodes (default: cluster.nodes)")
    text = (
        "tokens of the corpus, or of a source (repeatable): sets epochs, hours per epoch, and where "
        "pretrain.max_epochs ends training"
    )
    add("--tokens", type=_tokens, action="append", default=[], metavar="[SOURCE=]N", help=text)
    text = "YAML file that overrides the built-in machines and prices"
    add("--prices", type=Path, metavar="FILE", help=text)
    text = "plan the fastest layout that fits, and print its lines of the recipe"
    add("--best", action="store_true", help=text)
    text = "finished run, or its model artifact, whose tokens per second correct the predicted ones"
    add("--measured", metavar="RUN", help=text)
    cli_options.add_until_option(command, "last stage that has to fit (default: %(default)s)")
    cli_options.add_set_option(command)
    cli_options.add_output_option(command)
    command.set_defaults(command=run_plan)


def _tokens(text: str) -> tuple[str, int]:
    """The count of a source, or of the only text, whose name is ''."""
    source, _, count = text.rpartition("=")
    return source, cli_options.number(1)(count)


def run_plan(options: argparse.Namespace) -> int:
    """Print a plan, and do with it what the options ask for."""
    request = _request(options)
    result = choose_layout(request, best=options.best)
    _refuse_what_cannot_fit(request, result, options.prices)
    if options.measured:
        uri = options.measured
        if "/" not in uri:
            uri = find_run(uri, root=request.recipe.storage.root).artifacts.get("model", uri)
        measured = calibrate(absolute(uri), request.recipe, request.machine, request.trained)
        request = replace(request, calibration=measured)
    plan = build_plan(request, result)
    settings: dict[str, object] = {}
    if options.best:
        every = least_waste(plan.checkpoints, request.recipe.pretrain.steps)
        settings = recipe_settings(result.layout, request.machine, request.nodes, every)
    more = ["", "Lines for the recipe", "", *recipe_lines(settings)] if settings else []
    data = plan.as_json() | ({"settings": settings} if settings else {})
    print_result(data, [*plan_lines(plan), *more], options.output)
    return 0


def _request(options: argparse.Namespace) -> PlanRequest:
    stages = [stage.name for stage in cli_options.stages_until(options.until)]
    if "pretrain" not in stages:
        raise RecipeError(
            f"--until {options.until}: a plan begins with pretrain; name pretrain or a later stage"
            + (" (`anadil clean plan` says what clean needs)" if options.until == "clean" else "")
        )
    recipe = load_recipe(options.recipe, options.set)
    refuse_planned_base(recipe)
    refuse(PlannedRun(by=PLAN, recipe=recipe, here=False))
    instance = options.instance or recipe.cluster.instance
    kind = this_machine() if instance is None else machine(instance, options.prices)
    nodes, text = options.nodes or recipe.cluster.nodes, _text(recipe, options.tokens)
    return request_for(Path(options.recipe).stem, recipe, kind, nodes, text, tuple(stages))


def _text(recipe: Recipe, tokens: Sequence[tuple[str, int]]) -> dict[str, TextSize]:
    if tokens:
        # A schedule follows from the sizes of all sources, so some of them say nothing.
        if sorted(source for source, _ in tokens) != sorted(recipe.sources or [""]):
            names = " ".join(f"--tokens {source}=N" for source in recipe.sources) or "--tokens N"
            given = ", ".join(f"{source}={count}".lstrip("=") for source, count in tokens)
            whose = "the recipe has sources" if recipe.sources else "the recipe has one text"
            raise RecipeError(
                f"--tokens {given}: {whose}; write {names}, or leave it out: the sizes of the files are used, or the tokens "
                f"after `anadil run --until {LAST.name}`"
            )
        return {source: TextSize(basis="given", tokens=count) for source, count in tokens}
    decides = bool(recipe.sources) or recipe.pretrain.max_epochs is not None
    places = [recipe.storage.root or "", *named_files(STAGES["clean"], recipe)]
    # Nobody waits for a bucket whose text changes no figure but the epochs.
    text = text_of(recipe) if decides or not any("://" in place for place in places) else {}
    if not text and recipe.sources:
        log.warning(
            "the size of the text of sources is not known here: their epochs are not counted; give %s",
            " ".join(f"--tokens {source}=N" for source in recipe.sources),
        )
    elif not text and recipe.pretrain.max_epochs is not None:
        log.warning(
            "pretrain.max_epochs: %g ends training earlier where the text is small, and the size of clean.inputs is not "
            "known here: all steps are counted; give --tokens N",
            recipe.pretrain.max_epochs,
        )
    return text


def _refuse_what_cannot_fit(request: PlanRequest, result: PlanResult, prices: Path | None) -> None:
    layout, changed = possible_layout(request.recipe, request.machine, request.nodes)
    if not request.fits(result.layout):
        others = () if request.machine.name == LOCAL else machines(prices)
        raise PreflightError(
            refusal_text(
                request.trained, layout, request.work, request.machine, request.nodes, others, changed
            )
        )
    for line in checked_memory(request, request.then):
        log.debug("%s", line)
    if changed:
        log.warning(
            "the recipe's degrees of parallelism do not divide %s (%s x %s); planned with %s, "
            "micro-batch %s (--best prints its lines of the recipe)",
            counted(request.devices, "device"),
            request.nodes,
            request.machine.name,
            result.layout.name(),
            result.layout.micro_batch_size,
        )
    elif result.origin == "search" and not request.fits(layout):
        log.warning(
            "the recipe's own layout (%s, micro-batch %s) does not fit; planned with the fastest that does "
            "(--best prints its lines of the recipe)",
            layout.name(),
            layout.micro_batch_size,
        )


def recipe_settings(
    layout: Layout, machine: Machine, nodes: int, checkpoint_every: int | None = None
) -> dict[str, object]:
    """Recipe keys and values of a layout on some machines; without `checkpoint_every` the recipe's own stays."""
    settings: dict[str, object] = {
        "pretrain.micro_batch_size": layout.micro_batch_size,
        "pretrain.activation_checkpointing": layout.recompute,
        **{f"pretrain.parallelism.{name}": degree for name, degree in layout.degrees.items()},
    }
    if checkpoint_every is not None:
        settings["pretrain.checkpoint_every"] = checkpoint_every
    if machine.name != LOCAL:
        settings |= {"cluster.instance": machine.name, "cluster.nodes": nodes}
    return settings


def least_waste(checkpoints: CheckpointPlan, steps: int) -> int | None:
    """Steps between checkpoints by the rule that wastes least, at most a run's `steps`; None where a step's time is not known."""
    rules = [each for each in checkpoints.intervals if each.rule != "recipe"]
    known = [(each.waste, each.steps) for each in rules if each.steps]
    return min(min(known)[1], steps) if known else None


def recipe_lines(settings: Mapping[str, object]) -> list[str]:
    """Settings by dotted key as the lines of a recipe."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
    return yaml.safe_dump(tables, sort_keys=False).splitlines()
