"""How the training of a week ends: with a decay, or with a mean that is advised."""

from pathlib import Path

import pytest

from anadil.recipe.load import parse_recipe
from anadil.retrain.resolve import resolve
from tests.kit.retraining import Registry, add_text, make_checkpoint, make_week, recipe_of


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ([], True),
        (["pretrain.average_last=8"], False),
        (["merge.average_last=8"], False),
        (["pretrain.decay_fraction=0"], False),
        (["retrain.start=weights"], False),
    ],
)
def test_a_week_with_a_short_decay_is_advised_to_average(
    tmp_path: Path, registry: Registry, given: list[str], advised: bool
) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    phases = [{"trains": "all", "steps": 80, "lr": 0.001}]
    pretrain = {"phases": phases, "sequence_length": 64, "schedule": "wsd", "checkpoint_every": 10}
    recipe = recipe_of(tmp_path, pretrain=pretrain)
    point = {"step": 70, "place": make_checkpoint(tmp_path / "work/step-70")}
    registry.set_champion(make_week(recipe, points=[point])["model"])
    add_text(tmp_path / "text", "2.jsonl")

    lines = "\n".join(resolve(parse_recipe(recipe.model_dump_json(), "recipe", given)).lines)

    assert ("10 % of the week's own steps" in lines) == advised
    assert ("--set pretrain.average_last=8" in lines) == advised


@pytest.mark.parametrize(("every", "more"), [(10, ""), (500, " --set pretrain.checkpoint_every=10")])
def test_the_advised_settings_fit_the_recipe(
    tmp_path: Path, registry: Registry, every: int, more: str
) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    phases = [{"trains": "all", "steps": 80, "lr": 0.001}]
    pretrain = {"phases": phases, "sequence_length": 64, "schedule": "wsd", "checkpoint_every": every}
    recipe = recipe_of(tmp_path, pretrain=pretrain)
    point = {"step": 70, "place": make_checkpoint(tmp_path / "work/step-70")}
    registry.set_champion(make_week(recipe, points=[point])["model"])
    add_text(tmp_path / "text", "2.jsonl")

    (line,) = (each for each in resolve(recipe).lines if "the week's checkpoints may serve better" in each)

    assert line.endswith(f": --set pretrain.average_last=8{more}")
    given = line.partition(": --set ")[2].split(" --set ")
    again = resolve(parse_recipe(recipe.model_dump_json(), "recipe", given))
    assert again.recipe.pretrain.average_last == 8
    assert "may serve better" not in "\n".join(again.lines)
