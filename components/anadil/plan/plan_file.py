"""The plan beside a run's other files, to compare it with the time that the run took."""

import json
import logging
from collections.abc import Mapping

from anadil.core.errors import AnadilError
from anadil.plan.instances import machine, this_machine
from anadil.plan.model_shape import NotPlannedError
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.plan.text_use import TextSize
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)


def plan_as_file(
    recipe: Recipe, name: str, *, here: bool, text: Mapping[str, TextSize] | None = None
) -> dict[str, str]:
    """`plan.json` as text, by its name; nothing for a model or a machine that is not planned.

    It is for this machine (`here`) or those of `cluster`. Epochs are those of the `text`, if known.
    """
    kind = recipe.cluster.instance
    # How many steps a retraining has follows from its text alone.
    if (not here and kind is None) or (recipe.continues_champion and not text):
        return {}
    try:
        chosen = this_machine() if here or kind is None else machine(kind)
        nodes = 1 if here else recipe.cluster.nodes
        request = request_for(name, recipe, chosen, nodes, text)
        plan = build_plan(request, choose_layout(request))
    except (AnadilError, NotPlannedError) as error:
        log.debug("no plan is written: %s", error)
        return {}
    return {"plan.json": json.dumps(plan.as_json(), indent=1, ensure_ascii=False)}
