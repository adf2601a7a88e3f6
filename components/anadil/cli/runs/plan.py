"""`anadil plan`: what a run needs and costs, before a machine is rented."""

import argparse
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from anadil.artifacts import storage
from anadil.cli.calibrate.runs import (
    MODULE,
    RunSpec,
    default_folder,
    load_measurements,
    measure_layouts,
    read_logs,
    run_spec,
)
from anadil.cli.options import (
    add_output_option,
    add_recipe_argument,
    add_set_option,
    add_until_option,
    stages_until,
)
from anadil.cli.output import print_json, print_lines
from anadil.core.errors import PreflightError, RecipeError
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.launch.job import PYTORCHJOB, STAGE_LABEL
from anadil.launch.kubernetes.manifests import Container, pytorchjob, queue_labels, template
from anadil.plan.calibration import calibrate, device_of
from anadil.plan.from_recipe import possible_layout
from anadil.plan.instances import CPU, LOCAL, Machine, machine, machines, this_machine
from anadil.plan.layout import Layout
from anadil.plan.plan import PlanRequest, PlanResult, build_plan, choose_layout, request_for
from anadil.plan.reliability import CheckpointPlan
from anadil.plan.schema import Plan
from anadil.plan.text_use import TextSize
from anadil.plan.view.terminal import plan_lines
from anadil.preflight.memory import check_after, refusal_text
from anadil.preflight.text_size import text_of
from anadil.preflight.this_machine import require_packages
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.job import named_files

log = logging.getLogger(__name__)

MAX_MEASURED = 3
"""Most layouts that are measured; each takes a minute or so."""
DEADLINE_S = 1_800
"""Seconds of a measuring job, from its start."""


def add_plan(name: str, commands: Any, text: str) -> None:
    """Add `anadil plan`."""
    plan = commands.add_parser(name, help=text, description=text)
    add = plan.add_argument
    add_recipe_argument(plan)
    text = "machine type, such as p5.48xlarge (default: cluster.instance, or this machine)"
    add("--instance", metavar="TYPE", help=text)
    add("--nodes", type=_positive, metavar="N", help="number of nodes (default: cluster.nodes)")
    text = (
        "tokens of the corpus, or of a source (repeatable): sets epochs, hours per epoch, and where "
        "pretrain.max_epochs ends training"
    )
    add("--tokens", type=_tokens, action="append", default=[], metavar="[SOURCE=]N", help=text)
    add(
        "--prices",
        type=Path,
        metavar="FILE",
        help="YAML file that overrides the built-in machines and prices",
    )
    text = "plan the fastest layout that fits, and print its lines of the recipe"
    add("--best", action="store_true", help=text)
    add("--page", type=Path, metavar="FILE", help="also write the plan as an HTML page")
    text = "run some steps of the best layouts on this machine, and correct the speed by them"
    add("--measure", action="store_true", help=text)
    text = "write those runs as PyTorchJob manifests for a cluster instead"
    add("--jobs", type=Path, metavar="DIR", help=text)
    text = "correct the speed by the logs of those jobs"
    add("--measured", type=Path, nargs="+", default=[], metavar="LOG", help=text)
    add_until_option(plan, "last stage that has to fit (default: %(default)s)")
    add_set_option(plan)
    add_output_option(plan)
    plan.set_defaults(command=run_plan)


def _positive(text: str) -> int:
    """The count that people write as 2500000000 or 2.5e9."""
    number = float(text)
    if not 1 <= number < 1e18 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return int(number)


def _tokens(text: str) -> tuple[str, int]:
    """The count of a source, or of the only text, whose name is ''."""
    source, _, number = text.rpartition("=")
    return source, _positive(number)


def run_plan(options: argparse.Namespace) -> int:
    """Print a plan, and do with it what the options ask for."""
    request = _request(options)
    result = choose_layout(request, best=options.best)
    _refuse_what_cannot_fit(request, result, options.prices)
    if options.measure or options.jobs is not None or options.measured:
        _measure(options, request, result)
    if request.has_speed:
        calibration = calibrate(load_measurements(default_folder()), request.machine, request.shape)
        request = replace(request, calibration=calibration)
    plan = build_plan(request, result)
    if options.page is not None:
        _write_page(options.page, plan)
    settings: dict[str, object] = {}
    if options.best:
        every = least_waste(plan.checkpoints, request.recipe.pretrain.steps)
        settings = recipe_settings(result.layout, request.machine, request.nodes, every)
    if options.output == "json":
        print_json(plan.as_json() | ({"settings": settings} if settings else {}))
    else:
        print_lines(plan_lines(plan))
        if settings:
            print_lines(["", "Lines for the recipe", "", *recipe_lines(settings)])
    return 0


def _request(options: argparse.Namespace) -> PlanRequest:
    stages = [stage.name for stage in stages_until(options.until)]
    if "pretrain" not in stages:
        raise RecipeError(
            f"--until {options.until}: a plan begins with pretrain; name pretrain or a later stage"
            + (" (`anadil clean plan` says what clean needs)" if options.until == "clean" else "")
        )
    recipe = load_recipe(options.recipe, options.set)
    instance = options.instance or recipe.cluster.instance
    return request_for(
        Path(options.recipe).stem,
        recipe,
        this_machine() if instance is None else machine(instance, options.prices),
        options.nodes or recipe.cluster.nodes,
        _text(recipe, options.tokens),
        tuple(stages),
    )


def _text(recipe: Recipe, tokens: Sequence[tuple[str, int]]) -> dict[str, TextSize]:
    """Text of each source, or of the tokens that the option gives."""
    if tokens:
        # A schedule follows from the sizes of all sources, so some of them say nothing.
        if sorted(source for source, _ in tokens) != sorted(recipe.sources or [""]):
            names = " ".join(f"--tokens {source}=N" for source in recipe.sources) or "--tokens N"
            given = ", ".join(f"{source}={count}".lstrip("=") for source, count in tokens)
            whose = "the recipe has sources" if recipe.sources else "the recipe has one text"
            raise RecipeError(
                f"--tokens {given}: {whose}; write {names}, or leave it out: the sizes of the files are used, or the tokens "
                "after `anadil run --until encode`"
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


def _measure(options: argparse.Namespace, request: PlanRequest, result: PlanResult) -> None:
    """Take measurements from runs on this machine or from logs of jobs, or write such jobs."""
    folder = default_folder()
    if options.measured:
        read_logs(options.measured, folder)
        return
    # The recipe's own layout where these machines can have it, then the fastest.
    layout, changed = possible_layout(request.recipe, request.machine, request.nodes)
    outcome = [] if result.search is None else [*result.search.best, *result.search.frontier[::-1]]
    layouts = dict.fromkeys([*([] if changed else [layout]), *(each.layout for each in outcome)])
    device = device_of(request.machine)
    specs = [
        run_spec(each, request.recipe, request.shape, request.work, device)
        for each in [each for each in layouts if request.fits(each)][:MAX_MEASURED]
    ]
    if options.jobs is None:
        require_packages("pretrain", "--measure trains for some steps")
        measure_layouts(specs, request.machine, folder)
        return
    options.jobs.mkdir(parents=True, exist_ok=True)
    for job in job_manifests(specs, request.machine, request.nodes, request.recipe.image_of("pretrain")):
        path = options.jobs / f"{job['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
        log.info(
            "%s: apply it, wait for its end, save its log; then: anadil plan RECIPE --measured LOG", path
        )


def job_manifests(specs: Sequence[RunSpec], machine: Machine, nodes: int, image: str) -> list[dict[str, Any]]:
    """PyTorchJobs that measure layouts, each on all devices of some machines.

    Apply one, wait for it, then the next: without a gang scheduler two jobs may each get half of the machines.
    """
    for layout in (spec.layout for spec in specs):
        if layout.devices != nodes * machine.devices:
            raise RecipeError(
                f"{layout.name()} takes {counted(layout.devices, 'device')}, {nodes} x {machine.name} have "
                f"{nodes * machine.devices}; change the layout or cluster.nodes"
            )
    return [_job(spec, machine, nodes, image) for spec in specs]


def _job(spec: RunSpec, machine: Machine, nodes: int, image: str) -> dict[str, Any]:
    argument = spec.as_json()
    identity = json.dumps([argument, machine.name, nodes, image])
    name = f"anadil-measure-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
    labels = {"app.kubernetes.io/name": "anadil", STAGE_LABEL: "measure", "app.kubernetes.io/instance": name}
    # The model is made at random, so a job reads no data and needs no rights.
    needless: dict[str, object] = {"volumes": (), "secrets": {}, "service_account": None}
    cluster = spec.recipe.cluster.model_copy(update=needless)
    # torchrun takes where to meet and how many processes from the environment.
    command = ("python", "-m", "torch.distributed.run", "-m", MODULE)
    container = Container(name=PYTORCHJOB.container, image=image, command=command, arguments=(argument,))
    namespace = {"namespace": cluster.namespace} if cluster.namespace else {}
    return pytorchjob(
        {"name": name, **namespace, "labels": labels | queue_labels(cluster)},
        template(
            container, cluster, labels, machine=machine, nodes=nodes,
            devices=0 if machine.device == CPU else machine.devices,
        ),
        nodes=nodes, processes=machine.devices, restarts=0, deadline_s=DEADLINE_S,
    )  # fmt: skip


def _refuse_what_cannot_fit(request: PlanRequest, result: PlanResult, prices: Path | None) -> None:
    layout, changed = possible_layout(request.recipe, request.machine, request.nodes)
    if not request.fits(result.layout):
        others = () if request.machine.name == LOCAL else machines(prices)
        raise PreflightError(
            refusal_text(request.shape, layout, request.work, request.machine, request.nodes, others, changed)
        )
    for line in check_after(request.shape, request.recipe, request.machine, request.nodes, request.then):
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


def _write_page(path: Path, plan: Plan) -> None:
    require_packages("report", "--page makes a page")
    from anadil.report.plan_page import render_plan

    storage.store(str(path)).write(str(path), render_plan(plan).encode())
    log.info("page: %s", path)
