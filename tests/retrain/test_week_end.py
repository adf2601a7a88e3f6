"""How the training of a week ends: with a mean of its checkpoints, unless the recipe says how it ends."""

import json
from pathlib import Path

import pytest

from anadil.recipe.load import parse_recipe
from anadil.retrain.resolve import resolve
from tests.kit.retraining import SECTIONS, Registry, add_text, make_week


@pytest.mark.parametrize(
    ("said", "schedule", "average_last"),
    [
        ({}, "wsd", 8),
        ({"schedule": "wsd"}, "wsd", 8),
        ({"schedule": "wsd", "average_last": 3, "checkpoint_every": 2}, "wsd", 3),
        ({"schedule": "wsd", "decay_fraction": 0.1}, "wsd", None),
        ({"schedule": "cosine"}, "cosine", None),
    ],
)
def test_a_week_ends_with_a_mean_unless_the_recipe_says_how(
    tmp_path: Path, registry: Registry, said: dict[str, object], schedule: str, average_last: int | None
) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    sections = SECTIONS | {"storage": {"root": f"{tmp_path}/store"}, "pretrain": SECTIONS["pretrain"] | said}
    sections |= {"clean": {"inputs": [f"{tmp_path}/text/*.jsonl"]}}
    recipe = parse_recipe(json.dumps(sections), "recipe")
    registry.set_champion(make_week(recipe)["model"])
    add_text(tmp_path / "text", "2.jsonl")

    derived = resolve(recipe).recipe

    assert (derived.pretrain.schedule, derived.pretrain.average_last) == (schedule, average_last)
    # A pipeline carries the keys that the recipe says, and its first step derives the same.
    carried = parse_recipe(recipe.model_dump_json(exclude_unset=True), "pipeline")
    assert resolve(carried).recipe == derived
