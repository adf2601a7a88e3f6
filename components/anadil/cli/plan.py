"""`anadil plan`: what a run needs and costs, before a machine is rented."""

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path

import yaml

from anadil.cli.calibrate.local import measure
from anadil.cli.calibrate.pytorchjobs import job_manifests
from anadil.cli.calibrate.results import default_folder, device_of, load, read_logs
from anadil.cli.doctor.local import missing_packages
from anadil.core.errors import PreflightError
from anadil.plan.calibration import calibrate, predicted
from anadil.plan.edit_recipe import least_waste, settings_of, write_layout
from anadil.plan.finetuning import check_finetune_fits
from anadil.plan.from_recipe import possible_layout
from anadil.plan.instances import LOCAL, Machine, machine, machines, this_machine
from anadil.plan.layout import Layout
from anadil.plan.plan import Answer, Question, answer, plan_of
from anadil.plan.preflight import refusal
from anadil.plan.search import fit
from anadil.plan.view.terminal import lines
from anadil.recipe.load import load_recipe

log = logging.getLogger(__name__)

MEASURED = 3
"""Most layouts that are measured; each takes a minute or so."""


def plan(options: argparse.Namespace) -> int:
    """Print a plan, and do with it what the options ask for.

    Raises:
        PreflightError: No layout fits, or what an option needs is not installed.
        RecipeError: The recipe, the machine or the prices have mistakes.
        DataError: A log holds no measurement.
    """
    question = _question(options)
    chosen = answer(question, best=options.write)
    _refuse_what_cannot_fit(question, chosen, options.prices)
    if options.measure or options.jobs is not None or options.measured:
        _measure(options, question, chosen)
    question = _calibrated(question)
    exact = _exact(question, chosen.layout) if options.exact else None
    told = plan_of(question, chosen, exact)
    if options.write:
        every = least_waste(told, question.recipe.pretrain.steps)
        settings = settings_of(chosen.layout, question.machine, question.nodes, every)
        write_layout(Path(options.recipe), settings)
        log.info("%s: now says %s", options.recipe, chosen.layout.name())
    if options.page is not None:
        _write_page(options.page, told)
    if options.output == "json":
        print(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        print("\n".join(lines(told)))
    return 0


def _question(options: argparse.Namespace) -> Question:
    recipe = load_recipe(options.recipe, options.set)
    return Question(
        name=Path(options.recipe).stem,
        recipe=recipe,
        machine=_machine(options.instance or recipe.cluster.instance, options.prices),
        nodes=options.nodes or recipe.cluster.nodes,
        epoch_tokens=options.tokens,
    )


def _calibrated(question: Question) -> Question:
    """With what short runs on such a device have shown, now or earlier."""
    if not (question.machine.flops_bf16 and question.machine.hbm):
        return question
    found = calibrate(
        load(default_folder()),
        lambda measurement: predicted(measurement, question.machine),
        device=device_of(question.machine),
        shape=question.shape,
    )
    return replace(question, calibration=found)


def _measure(options: argparse.Namespace, question: Question, chosen: Answer) -> None:
    """Runs on this machine, jobs for a cluster, or results of such jobs."""
    folder = default_folder()
    if options.measured:
        read_logs(options.measured, folder)
        return
    layouts = _to_measure(question, chosen)
    if options.jobs is None:
        _need("pretrain", "--measure trains for some steps")
        measure(layouts, question.recipe, question.shape, question.work, question.machine, runs=folder)
        return
    image = question.recipe.cluster.image_of("pretrain")
    jobs = job_manifests(
        layouts, question.recipe, question.shape, question.work, question.machine, question.nodes, image
    )
    options.jobs.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        path = options.jobs / f"{job['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
        log.info(
            "%s: apply it, wait for its end, keep its log; then: anadil plan RECIPE --measured LOG", path
        )


def _to_measure(question: Question, chosen: Answer) -> list[Layout]:
    """The recipe's own layout where these machines can have it, then the fastest."""
    own, changed = possible_layout(question.recipe, question.machine, question.nodes)
    found = [] if chosen.found is None else [*chosen.found.best, *chosen.found.frontier[::-1]]
    layouts = [*([] if changed else [own]), *(each.layout for each in found)]
    fitting = [
        each
        for each in dict.fromkeys(layouts)
        if fit(question.shape, each, question.work, question.machine)[1] != "no"
    ]
    return fitting[:MEASURED]


def _machine(name: str | None, prices: Path | None) -> Machine:
    return this_machine() if name is None else machine(name, prices)


def _refuse_what_cannot_fit(question: Question, chosen: Answer, prices: Path | None) -> None:
    _, verdict = fit(question.shape, chosen.layout, question.work, question.machine)
    own, changed = possible_layout(question.recipe, question.machine, question.nodes)
    if verdict == "no":
        others = () if question.machine.name == LOCAL else machines(prices)
        raise PreflightError(
            refusal(question.shape, own, question.work, question.machine, question.nodes, others, changed)
        )
    if question.recipe.finetune.inputs:
        log.debug("%s", check_finetune_fits(question.shape, question.recipe, question.machine))
    if changed:
        log.warning(
            "the recipe's degrees of parallelism do not divide %s device(s) (%s x %s); planned with %s, "
            "micro-batch %s (--write puts it into the recipe)",
            question.devices,
            question.nodes,
            question.machine.name,
            chosen.layout.name(),
            chosen.layout.micro_batch_size,
        )
    elif chosen.origin == "search" and fit(question.shape, own, question.work, question.machine)[1] == "no":
        log.warning(
            "the recipe's own layout (%s, micro-batch %s) does not fit; planned with the fastest that does "
            "(--write puts it into the recipe)",
            own.name(),
            own.micro_batch_size,
        )


def _exact(question: Question, layout: Layout) -> dict[str, object]:
    _need("pretrain", "--exact runs the real model")
    log.info("running a step of the real model on fake tensors: seconds to a minute")
    from anadil.cli.calibrate.fake_run import exact_of

    return exact_of(question, layout)


def _write_page(path: Path, told: dict[str, object]) -> None:
    _need("report", "--page makes a page")
    from anadil.report.plan_page import render_plan

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(render_plan(told), encoding="utf-8")
    draft.replace(path)
    log.info("page: %s", path)


def _need(extra: str, what: str) -> None:
    absent = missing_packages(extra)
    if absent:
        raise PreflightError(f"{what} and needs {', '.join(absent)}; pip install 'anadil[{extra}]'")
