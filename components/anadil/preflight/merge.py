"""Look at the models and the text of a merge before a run: a wrong one would end it after its pre-training."""

from pathlib import Path

from anadil.artifacts.base_model import base_tokenizer, is_local
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.preflight.base_model import check_base
from anadil.preflight.check import CheckResult, passed
from anadil.preflight.places import claims_of, inspect_where_visible
from anadil.recipe.sections import Base, Recipe
from anadil.runtime.execute import base_cache
from anadil.runtime.job import named_side_files, side_files

KEY = "merge.add"


def inspect_merge(recipe: Recipe, *, here: bool = True) -> CheckResult:
    """Read config, tokenizer and the headers of weights of the models that are added, and compare them with the base's."""
    settings = recipe.merge
    models = {
        f"{KEY}.{place}.{key}": base
        for place, each in enumerate(settings.add if settings else ())
        for key, base in (
            ("model", Base(model=each.model, revision=each.revision)),
            ("minus", Base(model=each.minus, revision=each.minus_revision)),
        )
    }
    hidden = claims_of((base.model for base in models.values()), recipe, here=here)

    def inspect() -> CheckResult:
        for key, base in models.items():
            check_base(base, key)
            base_tokenizer(base, base_cache(recipe), key)
        compared = _compare({key: base.model for key, base in models.items()}, recipe.base.model)
        words = (
            f"{compared} of the base's shape"
            if compared
            else "to be compared with the base when they are merged"
        )
        return passed(KEY, f"{counted(len(models), 'model')} found, {words}")

    return inspect_where_visible(KEY, inspect, here=here, hidden=hidden)


def inspect_tuning_text(recipe: Recipe, *, here: bool = True) -> CheckResult:
    """Read the files of `evaluate.retained`, of each of which `auto` needs a part; that of corpora is not made yet."""
    key = "evaluate.retained"
    (kind,) = (each for each in STAGES["merge"].side_files if each.key == key)
    names = named_side_files(STAGES["merge"], recipe).get(key, ())

    def inspect() -> CheckResult:
        from anadil.evaluate.own_chat import retained_tuning  # loads numpy, which not every image has

        tuning = retained_tuning(recipe, [uri for name in names for uri in side_files(name, kind)])
        return passed(key, f"{counted(len(tuning), 'document')} for tuning")

    return inspect_where_visible(key, inspect, here=here, hidden=claims_of(names, recipe, here=here))


def _compare(models: dict[str, str], base: str) -> int:
    """Compare those that are directories with the base, where that is one; return their number."""
    # The weights of a hub model are fetched when they are merged, and `tiny` is made when it is needed.
    local = {key: model for key, model in models.items() if is_local(model)}
    if not local or not is_local(base):
        return 0
    from anadil.merge.checks import check_alike  # loads torch, which not every image has
    from anadil.merge.model_weights import open_weights

    base_weights = open_weights(Path(base).expanduser(), "base.model")
    for key, model in local.items():
        check_alike(open_weights(Path(model).expanduser(), key), base_weights)
    return len(local)
