"""Check the checkpoint that a run begins with before anything runs for hours."""

from anadil.preflight.check import CheckResult, passed
from anadil.preflight.places import claim_of, inspect_where_visible, unseen
from anadil.pretrain.checkpoint.start_point import KEY, check_start_point, read_start_point
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import base_files


def inspect_start_point(recipe: Recipe, *, here: bool = True) -> CheckResult:
    """Read the checkpoint's manifest and state, and compare them with the recipe.

    Tokenizer, shapes and texts are compared when training begins: only then they are there.

    Raises:
        DataError: There is no finished checkpoint.
        IntegrityError: It is damaged, as far as these two tell.
        RecipeError: It cannot be the begin of this run.
    """
    place = str(recipe.pretrain.start_from)
    if not here and (claim := claim_of(place, recipe)):
        return unseen(KEY, {place: claim})

    def inspect() -> CheckResult:
        start = read_start_point(place)
        said = check_start_point(start, recipe, base_files(recipe.base.model))
        run = f" of {start.run}" if start.run else ""
        detail = f"step {start.step:,}{run}; {recipe.pretrain.steps - start.step:,} steps are left"
        return passed(KEY, detail, "; ".join(each.removeprefix(f"{KEY}: ") for each in said))

    return inspect_where_visible(KEY, inspect, here=here)
