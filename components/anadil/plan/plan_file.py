"""The plan beside a run's other files, to compare it with the time that the run took."""

import json
import logging
from collections.abc import Mapping

from anadil.core.errors import AnadilError
from anadil.plan.instances import machine, this_machine
from anadil.plan.model_shape import NotPlannedError
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.plan.schema import Plan
from anadil.plan.text_use import TextSize
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)


def plan_as_file(
    recipe: Recipe, name: str, *, here: bool, text: Mapping[str, TextSize] | None = None
) -> dict[str, str]:
    """`plan.json` as text, by its name; nothing for a model or a machine that is not planned.

    It is for this machine (`here`) or those of `cluster`. Epochs are those of the `text`, if known.
    """
    # How many steps a retraining has follows from its text alone.
    if (not here and recipe.cluster.instance is None) or (recipe.continues_champion and not text):
        return {}
    try:
        plan = plan_of(recipe, name, here=here, text=text)
    except (AnadilError, NotPlannedError) as error:
        log.debug("no plan is written: %s", error)
        return {}
    return {"plan.json": json.dumps(plan.as_json(), indent=1, ensure_ascii=False)}


def plan_of(recipe: Recipe, name: str, *, here: bool, text: Mapping[str, TextSize] | None = None) -> Plan:
    """Plan a recipe on this machine (`here`), or on those of `cluster`."""
    kind = recipe.cluster.instance
    chosen = this_machine() if here or kind is None else machine(kind)
    request = request_for(name, recipe, chosen, 1 if here else recipe.cluster.nodes, text)
    return build_plan(request, choose_layout(request))
