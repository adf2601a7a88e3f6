"""Check the checkpoint or model that a run begins with before anything runs for hours."""

from anadil.preflight.check import CheckResult, passed
from anadil.preflight.places import claim_of, inspect_where_visible, unseen
from anadil.pretrain.checkpoint.start_point import KEY
from anadil.pretrain.checkpoint.start_weights import StartWeights, check_start, read_start
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import base_files


def inspect_start_point(recipe: Recipe, *, here: bool = True) -> CheckResult:
    """Read its manifest and state, and compare them with the recipe.

    Tokenizer, shapes and texts are compared when training begins: only then they are there.

    Raises:
        DataError: There is no finished checkpoint or model.
        IntegrityError: It is damaged, as far as these two tell.
        RecipeError: It cannot be the begin of this run.
    """
    place = str(recipe.pretrain.start_from)
    if not here and (claim := claim_of(place, recipe)):
        return unseen(KEY, {place: claim})

    def inspect() -> CheckResult:
        start = read_start(place)
        said = check_start(start, recipe, base_files(recipe.base.model))
        if isinstance(start, StartWeights):
            return passed(KEY, "; ".join(["a finished model, with new moments", *_short(said)]))
        run = f" of {start.run}" if start.run else ""
        detail = f"step {start.step:,}{run}; "
        detail += (
            "the new text makes the steps"
            if recipe.continues_champion
            else f"{recipe.pretrain.steps - start.step:,} steps are left"
        )
        return passed(KEY, detail, "; ".join(_short(said)))

    return inspect_where_visible(KEY, inspect, here=here)


def _short(lines: list[str]) -> list[str]:
    return [each.removeprefix(f"{KEY}: ") for each in lines]
