"""Checks before `finetune` starts: the adapter that it begins with."""

import logging
from collections.abc import Iterator

from anadil.artifacts.artifact import finished_manifest
from anadil.finetune.start_adapter import KEY, KIND, refuse_other_form
from anadil.recipe.sections import Recipe
from anadil.runtime.check import (
    EVERY,
    Check,
    CheckResult,
    PlannedRun,
    claims_of,
    inspect_where_visible,
    passed,
)


def _start_adapter(planned: PlannedRun) -> Iterator[CheckResult]:
    if planned.recipe.finetune.start_from and "finetune" in planned.names:
        yield inspect_start_adapter(planned.recipe, here=planned.here)


def inspect_start_adapter(recipe: Recipe, *, here: bool = True) -> CheckResult:
    """Compare the adapter that finetuning begins with with the recipe; its model is compared once it is there."""
    place = str(recipe.finetune.start_from)

    def inspect() -> CheckResult:
        refuse_other_form(place, finished_manifest(place, KIND), recipe)
        return passed(KEY, "an adapter of the recipe's form")

    hidden = claims_of([place], recipe, here=here)
    return inspect_where_visible(KEY, inspect, here=here, hidden=hidden)


CHECKS = (Check(name=KEY, by=EVERY, function=_start_adapter, level=logging.INFO),)
