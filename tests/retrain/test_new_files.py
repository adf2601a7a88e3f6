"""Patterns of inputs whose files were put away, and those that never named one."""

from pathlib import Path

import pytest

from anadil.core.errors import DataError
from anadil.recipe.sections import Recipe
from anadil.retrain.resolve import resolve
from tests.kit.retraining import Registry, add_text, make_week, recipe_of


def first_week(registry: Registry, recipe: Recipe) -> None:
    registry.set_champion(make_week(recipe)["model"])


def test_files_that_were_put_away_after_they_were_read_are_no_mistake(
    tmp_path: Path, registry: Registry
) -> None:
    path = add_text(tmp_path / "text", "1.jsonl")
    recipe = recipe_of(tmp_path)
    first_week(registry, recipe)
    Path(path).unlink()

    assert resolve(recipe).state == "nothing"


@pytest.mark.parametrize("pattern", ["text", "text/**/*.jsonl", "text/?.jsonl"])
def test_a_pattern_that_never_named_a_file_is_a_mistake_beside_one_whose_files_were_put_away(
    tmp_path: Path, registry: Registry, pattern: str
) -> None:
    path = add_text(tmp_path / "text", "1.jsonl")
    add_text(tmp_path / "other", "1.jsonl", "other")
    inputs = [f"{tmp_path}/other/1.jsonl", f"{tmp_path}/{pattern}"]
    recipe = recipe_of(tmp_path, clean={"inputs": inputs})
    first_week(registry, recipe)
    Path(path).unlink()
    Path(path).parent.rmdir()

    assert resolve(recipe).state == "nothing"

    wrong = recipe_of(tmp_path, clean={"inputs": [*inputs, f"{tmp_path}/texts/*.jsonl"]})
    with pytest.raises(DataError, match=r"no file matches '.*/texts/\*\.jsonl'"):
        resolve(wrong)
