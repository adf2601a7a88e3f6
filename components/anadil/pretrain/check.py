"""Checks before `pretrain` starts: the checkpoint or model that it begins with."""

import logging
from collections.abc import Iterator
from contextlib import suppress

from anadil.core.errors import RecipeError
from anadil.pretrain.checkpoint.start_point import KEY, Start, StartWeights, check_start, read_start
from anadil.recipe.sections import Recipe
from anadil.runtime import check
from anadil.runtime.cache_key import base_files


def _start_point(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    if planned.recipe.pretrain.start_from and "pretrain" in planned.names:
        yield inspect_start_point(planned.recipe, here=planned.here)


def inspect_start_point(recipe: Recipe, *, here: bool = True) -> check.CheckResult:
    """Read its manifest and state, and compare them with the recipe.

    Tokenizer, shapes and texts are compared when training begins: only then they are there.
    """
    place = str(recipe.pretrain.start_from)

    def inspect() -> check.CheckResult:
        start = read_start(place)
        steps, said = _compare(start, recipe)
        said = [each.removeprefix(f"{KEY}: ") for each in said]
        if isinstance(start, StartWeights):
            return check.passed(KEY, "; ".join(["a finished model, with new moments", *said]))
        run = f" of {start.run}" if start.run else ""
        left = f"{steps - start.step:,} steps are left"
        ahead = "the new text makes the steps" if recipe.continues_champion else left
        return check.passed(KEY, f"step {start.step:,}{run}; {ahead}", "; ".join(said))

    return check.inspect_where_visible(KEY, inspect, [place], recipe, here=here)


def _compare(start: Start, recipe: Recipe) -> tuple[int, list[str]]:
    """Steps of the phases that the checkpoint fits, and what is to be said."""
    origin, settings = base_files(recipe.base.model), recipe.pretrain
    try:
        return settings.steps, check_start(start, recipe, origin)
    except RecipeError:
        # Its run may have had a tokenizer without new tokens, and this run has the same tokenizer.
        fewer = settings.without_new_rows
        if recipe.continues_champion or fewer == settings:
            raise
        with suppress(RecipeError):
            said = check_start(start, recipe.model_copy(update={"pretrain": fewer}), origin)
            return fewer.steps, [
                *said,
                "it fits only if the tokenizer has no new token, for then pretrain.phases of new_rows are left out",
            ]
        raise


CHECKS = (
    check.Check(name=KEY, by=check.EVERY, needs=("base.model",), function=_start_point, level=logging.INFO),
)
