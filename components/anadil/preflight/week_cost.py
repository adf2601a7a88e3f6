"""The price of a retraining by its plan, and the limit that the recipe sets."""

import logging

from anadil.core.errors import BudgetReached, RecipeError
from anadil.core.format import human_dollars
from anadil.plan.plan import plan_of
from anadil.plan.schema import Plan
from anadil.preflight.text_size import text_of
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

KEY = "retrain.max_usd"


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
