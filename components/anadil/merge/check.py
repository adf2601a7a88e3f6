"""Checks before `merge` starts: the models that it adds, and text to measure with."""

import logging
from collections.abc import Iterator
from pathlib import Path

from anadil.artifacts.base_model import base_tokenizer, check_base, is_local
from anadil.core.format import counted
from anadil.merge.stage import STAGE
from anadil.recipe.sections import Base, Recipe
from anadil.runtime import check
from anadil.runtime.execute import base_cache
from anadil.runtime.job import named_side_files, side_files

KEY = "merge.add"


def _merge(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    merge = planned.recipe.merge
    if not merge or STAGE.name not in planned.names:
        return
    if merge.add:
        yield inspect_merge(planned.recipe, here=planned.here)
    if merge.is_auto:
        yield inspect_tuning_text(planned.recipe, here=planned.here)


def inspect_merge(recipe: Recipe, *, here: bool = True) -> check.CheckResult:
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

    def inspect() -> check.CheckResult:
        for key, base in models.items():
            check_base(base, key)
            base_tokenizer(base, base_cache(recipe), key)
        compared = _compare({key: base.model for key, base in models.items()}, recipe.base.model)
        later = "to be compared with the base when they are merged"
        words = f"{compared} of the base's shape" if compared else later
        return check.passed(KEY, f"{counted(len(models), 'model')} found, {words}")

    return check.inspect_where_visible(
        KEY, inspect, (base.model for base in models.values()), recipe, here=here
    )


def inspect_tuning_text(recipe: Recipe, *, here: bool = True) -> check.CheckResult:
    """Read the files of `evaluate.retained`, of each of which `auto` needs a part; that of corpora is not made yet."""
    key = "evaluate.retained"
    (kind,) = (each for each in STAGE.side_files if each.key == key)
    names = named_side_files(STAGE, recipe).get(key, ())

    def inspect() -> check.CheckResult:
        from anadil.evaluate.tuning import retained_tuning  # loads numpy, which not every image has

        tuning = retained_tuning(recipe, [uri for name in names for uri in side_files(name, kind)])
        return check.passed(key, f"{counted(len(tuning), 'document')} for tuning")

    return check.inspect_where_visible(key, inspect, names, recipe, here=here)


def _compare(models: dict[str, str], base: str) -> int:
    # The weights of a hub model are fetched when they are merged, and `tiny` is made when it is needed.
    local = {key: model for key, model in models.items() if is_local(model)}
    if not local or not is_local(base):
        return 0
    from anadil.merge.model_weights import (
        check_alike,  # loads torch, which not every image has
        open_weights,
    )

    base_weights = open_weights(Path(base).expanduser(), "base.model")
    for key, model in local.items():
        check_alike(open_weights(Path(model).expanduser(), key), base_weights)
    return len(local)


CHECKS = (check.Check(name="merge", by=check.EVERY, function=_merge, level=logging.INFO),)
