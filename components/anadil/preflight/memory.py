"""Refuse a training run that cannot fit or a retraining that costs too much, before anything is rented or computed."""

import logging
from collections.abc import Collection, Mapping, Sequence

from anadil.core.errors import BudgetReached, PreflightError, RecipeError
from anadil.core.format import human_bytes, human_dollars, human_parameters
from anadil.core.stages import BEFORE_TRAINING, BEHIND_TRAINING
from anadil.estimate.fit import layout_fit
from anadil.estimate.instances import Machine, machine, machines, this_machine
from anadil.estimate.layout import Layout, Work, hardest, layout_of, work_of
from anadil.estimate.model_shape import NotPlannedError, Shape, trained_shape
from anadil.estimate.search import nearest
from anadil.estimate.stage_memory import NeedRequest
from anadil.model.family_table import check_family
from anadil.plan.needs import checked_memory
from anadil.plan.plan import plan_of
from anadil.plan.schema import Plan
from anadil.preflight.text_size import text_of
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

MAX_REMEDIES = 4
KEY = "retrain.max_usd"


def check_fits(recipe: Recipe, *, here: bool, then: Collection[str] = BEHIND_TRAINING) -> str:
    """Return one line about the memory that `pretrain` and the stages `then` need, here or on the machines of `cluster`.

    A model type that is trained but not planned passes: the line says that its memory is not checked.
    """
    kind, nodes = _machine(recipe, here=here)
    layout = layout_of(recipe, kind, nodes)
    try:
        shape = trained_shape(recipe)
    except NotPlannedError as error:
        check_family({"model_type": error.model_type}, layout.degrees)
        return f"the memory of pretrain is not checked: {error}"
    check_family({"model_type": shape.model_type}, layout.degrees)
    work = work_of(recipe, kind, hardest(recipe))
    total, verdict = layout_fit(shape, layout, work, kind)
    line = f"pretrain needs {human_bytes(total)} of {human_bytes(kind.memory_bytes)} per device"
    if verdict == "no":
        raise PreflightError(refusal_text(shape, layout, work, kind, nodes, () if here else machines()))
    request = NeedRequest(recipe=recipe, machine=kind, nodes=nodes)
    behind = {*then} - {*BEFORE_TRAINING}
    return "; ".join(
        [*checked_memory(request, BEFORE_TRAINING), f"{line} ({verdict})", *checked_memory(request, behind)]
    )


def check_finetune(recipe: Recipe, *, here: bool) -> str:
    """Return one line about the memory that `finetune` alone needs; see `check_fits`."""
    kind, nodes = _machine(recipe, here=here)
    try:
        return next(checked_memory(NeedRequest(recipe=recipe, machine=kind, nodes=nodes), ("finetune",)), "")
    except NotPlannedError as error:
        return f"the memory of finetune is not checked: {error}"


def _machine(recipe: Recipe, *, here: bool) -> tuple[Machine, int]:
    if here or recipe.cluster.instance is None:
        return this_machine(), 1
    return machine(recipe.cluster.instance), recipe.cluster.nodes


def refusal_text(
    shape: Shape, layout: Layout, work: Work, kind: Machine, nodes: int, others: Sequence[Machine] = (),
    changed: Mapping[str, int | str] | None = None,
) -> str:  # fmt: skip
    """Return the text of a refusal: what does not fit, and the nearest settings that do, on `others` too.

    Each remedy also says the recipe keys that the layout has changed.
    """
    total, _ = layout_fit(shape, layout, work, kind)
    head = (
        f"pretrain does not fit: {shape.name} ({human_parameters(shape.parameters)} parameters), "
        f"{layout.name()}, micro-batch {layout.micro_batch_size} of {work.sequence_length:,} tokens, needs "
        f"{human_bytes(total)} on a device that has {human_bytes(kind.memory_bytes)} ({kind.name}, {kind.device})"
    )
    remedies = nearest(shape, layout, work, kind, nodes, others, changed)
    if not remedies:
        return f"{head}; no setting makes it fit: take a smaller base.model or a larger machine"
    lines = [f"{head}; what fits instead:"]
    for remedy in remedies[:MAX_REMEDIES]:
        settings = " ".join(f"--set {key}={value}" for key, value in remedy.settings.items())
        lines.append(f"  {settings}  ({human_bytes(remedy.total_bytes)})")
    return "\n".join(lines)


def week_plan(derived: Recipe, name: str) -> Plan:
    """Plan a retraining on the machines of `cluster`, else on this one; its steps follow from the new text."""
    return plan_of(derived, name, here=derived.cluster.instance is None, text=text_of(derived))


def refuse_dear(derived: Recipe) -> None:
    """Refuse a retraining that costs more than the recipe allows, before a GPU is asked for."""
    most = derived.retrain.max_usd if derived.retrain else None
    # Without an instance nothing is rented.
    if derived.retrain is None or most is None or derived.cluster.instance is None:
        return
    if derived.retrain.keeps_model:
        log.warning("%s: %g is not compared, since a plan has no price of finetuning alone", KEY, most)
        return
    usd = week_plan(derived, "retrain").expected_cost
    if usd is None:
        raise RecipeError(
            f"{KEY}: {most:g}, and the plan has no price for cluster.instance {derived.cluster.instance}; name a machine of "
            "the price table, or leave the key out"
        )
    if usd > most:
        raise BudgetReached(
            f"{KEY}: the retraining is planned at {human_dollars(usd)}, above {human_dollars(most)}; raise the key, name "
            "fewer files, or lower retrain.epochs"
        )
