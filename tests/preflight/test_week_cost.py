"""The price of a retraining, and its limit."""

from pathlib import Path

import pytest

from anadil.core.errors import BudgetReached, RecipeError
from anadil.preflight.memory import refuse_dear, week_plan
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.retrain.resolve import resolve
from tests.kit.retraining import Registry, add_text, make_week, recipe_of, use_registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    return use_registry(monkeypatch)


def week_of(tmp_path: Path, registry: Registry, folder: str, *settings: str) -> Recipe:
    """The recipe of a retraining on a new file of a folder."""
    for name in ("text", "chats"):
        add_text(tmp_path / name, "1.jsonl", 900 * name)
    plain = recipe_of(tmp_path, finetune={"inputs": [f"{tmp_path}/chats/*.jsonl"]})
    registry.set_champion(make_week(plain, until="finetune")["adapter"])
    add_text(tmp_path / folder, "2.jsonl", 1_000 * folder)
    return resolve(parse_recipe(plain.model_dump_json(exclude_unset=True), "recipe", settings)).recipe


def test_a_week_is_planned_for_its_own_steps_on_the_machines_of_the_cluster(
    tmp_path: Path, registry: Registry
) -> None:
    plan = week_plan(week_of(tmp_path, registry, "text", "cluster.instance=p5.48xlarge"), "week")

    assert (plan.machine.instance, sum(phase.steps for phase in plan.phases)) == ("p5.48xlarge", 2)
    assert plan.expected_cost


@pytest.mark.parametrize(
    ("folder", "settings", "error"),
    [
        ("text", ("cluster.instance=p5.48xlarge", "retrain.max_usd=1000"), None),
        ("text", ("cluster.instance=p5.48xlarge", "retrain.max_usd=0.000001"), BudgetReached),
        # This machine is nobody's to rent, and finetuning alone has no price.
        ("text", ("retrain.max_usd=0.000001",), None),
        ("chats", ("cluster.instance=p5.48xlarge", "retrain.max_usd=0.000001"), None),
        ("text", ("cluster.instance=unheard-of", "retrain.max_usd=1"), RecipeError),
    ],
)
def test_a_retraining_above_its_limit_is_refused(
    tmp_path: Path, registry: Registry, folder: str, settings: tuple[str, ...], error: type[Exception] | None
) -> None:
    derived = week_of(tmp_path, registry, folder, "retrain={}", *settings)

    if error:
        with pytest.raises(error):
            refuse_dear(derived)
    else:
        refuse_dear(derived)
