"""Checks before `finetune` starts: the adapter that it begins with."""

import logging
from collections.abc import Iterator

from anadil.artifacts.artifact import finished_manifest
from anadil.finetune.start_adapter import KEY, KIND, refuse_other_form
from anadil.recipe.sections import Recipe
from anadil.runtime import check


def _start_adapter(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    if planned.recipe.finetune.start_from and "finetune" in planned.names:
        yield inspect_start_adapter(planned.recipe, here=planned.here)


def inspect_start_adapter(recipe: Recipe, *, here: bool = True) -> check.CheckResult:
    """Compare the adapter that finetuning begins with with the recipe; its model is compared once it is there."""
    place = str(recipe.finetune.start_from)

    def inspect() -> check.CheckResult:
        refuse_other_form(place, finished_manifest(place, KIND), recipe)
        return check.passed(KEY, "an adapter of the recipe's form")

    return check.inspect_where_visible(KEY, inspect, [place], recipe, here=here)


CHECKS = (check.Check(name=KEY, by=check.EVERY, function=_start_adapter, level=logging.INFO),)
