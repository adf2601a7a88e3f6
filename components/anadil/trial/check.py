"""Checks before `trial` starts: the base's compute."""

from collections.abc import Iterator

from anadil.core.errors import PreflightError
from anadil.estimate.model_shape import NotPlannedError, base_shape
from anadil.runtime.check import EVERY, RECIPE, Check, CheckResult, PlannedRun


def _compute(planned: PlannedRun) -> Iterator[CheckResult]:
    recipe = planned.recipe
    if recipe.tokenizer.trial and not planned.names.isdisjoint(("tokenizer", "trial")):
        try:
            base_shape(recipe)
        except NotPlannedError as error:
            raise PreflightError(
                "tokenizer.trial: gives every finalist the same compute, and that of the model type "
                f"{error.model_type!r} of base.model {recipe.base.model} is not known; leave tokenizer.trial out, and "
                "the cheapest by tokens is taken"
            ) from None
    return iter(())


CHECKS = (Check(name="tokenizer.trial", by=(*EVERY, RECIPE), needs=("base.model",), function=_compute),)
