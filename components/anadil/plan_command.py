"""`anadil plan`: what a run needs and costs, before a machine is rented."""

import argparse
import json
import logging
from pathlib import Path

from anadil.errors import PreflightError
from anadil.plan.compose import Answer, Question, answer, exact_of, plan_of
from anadil.plan.layout import Layout
from anadil.plan.machine import Machine, machine, this_machine
from anadil.plan.preflight import refusal
from anadil.plan.search import fit
from anadil.plan.settings import layout_of
from anadil.plan.table import lines
from anadil.plan.write import settings_of, write_layout
from anadil.recipe import load_recipe

log = logging.getLogger(__name__)


def plan(options: argparse.Namespace) -> int:
    """Print a plan, and do with it what the options ask for.

    Raises:
        PreflightError: No layout fits.
        RecipeError: The recipe, the machine or the prices have mistakes.
    """
    question = _question(options)
    chosen = answer(question, best=options.write)
    _refuse_what_cannot_fit(question, chosen)
    exact = _exact(question, chosen.layout) if options.exact else None
    told = plan_of(question, chosen, exact)
    if options.write:
        write_layout(Path(options.recipe), settings_of(chosen.layout, question.machine, question.nodes))
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
    kind = _machine(options.instance or recipe.cluster.instance, options.prices)
    nodes = options.nodes or recipe.cluster.nodes
    return Question(
        name=Path(options.recipe).stem,
        recipe=recipe,
        machine=kind,
        nodes=nodes,
        epoch_tokens=options.tokens,
    )


def _machine(name: str | None, prices: Path | None) -> Machine:
    return this_machine() if name is None else machine(name, prices)


def _refuse_what_cannot_fit(question: Question, chosen: Answer) -> None:
    total, verdict = fit(question.shape, chosen.layout, question.work, question.machine)
    own = layout_of(question.recipe, question.machine, question.nodes)
    if verdict == "no":
        raise PreflightError(refusal(question.shape, own, question.work, question.machine, question.nodes))
    if chosen.origin == "search" and fit(question.shape, own, question.work, question.machine)[1] == "no":
        log.warning(
            "the recipe's own layout (%s, micro-batch %s) does not fit; planned with the fastest that does "
            "(--write puts it into the recipe)",
            own.name(),
            own.micro_batch_size,
        )


def _exact(question: Question, layout: Layout) -> dict[str, object]:
    from anadil.doctor import missing_packages

    absent = missing_packages("pretrain")
    if absent:
        raise PreflightError(
            f"--exact runs the real model and needs {', '.join(absent)}; pip install 'anadil[pretrain]'"
        )
    log.info("running a step of the real model on fake tensors: seconds to a minute")
    return exact_of(question, layout)


def _write_page(path: Path, told: dict[str, object]) -> None:
    from anadil.doctor import missing_packages

    if missing_packages("report"):
        raise PreflightError("--page needs Jinja2; pip install 'anadil[report]'")
    from anadil.report.plan_page import render_plan

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(render_plan(told), encoding="utf-8")
    draft.replace(path)
    log.info("page: %s", path)
