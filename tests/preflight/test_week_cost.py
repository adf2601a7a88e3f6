"""The cost of a retraining, by the champion's own rates."""

from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import BudgetReached, RecipeError
from anadil.preflight.week_cost import RunCost, WeekCost, refuse_dear, week_cost
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.retrain.derive import derived_recipe
from anadil.retrain.lineage import lineage_of
from anadil.retrain.new_files import compare_chats, compare_inputs
from tests.kit.retraining import add_text, make_week, recipe_of, released, two_sources

TEXT = "x" * 1_000


def cost_of(recipe: Recipe, model: str) -> WeekCost:
    lineage = lineage_of(released(model))
    inputs, chats = compare_inputs(recipe, lineage.files), compare_chats(recipe, lineage.chats)
    is_new = chats.unlearnt or any(each.new for each in inputs.values())
    derived = derived_recipe(recipe, lineage, inputs, chats) if is_new else recipe
    return week_cost(recipe, derived, lineage, inputs, chats)


def test_text_and_time_follow_from_the_bytes_of_new_files(tmp_path: Path) -> None:
    for number in range(4):
        add_text(tmp_path / "text", f"{number}.jsonl", TEXT)
    pretrain = {
        "phases": [{"trains": "all", "steps": 100, "lr": 0.001}],
        "sequence_length": 64,
        "batch_size": 8,
    }
    recipe = recipe_of(tmp_path, pretrain=pretrain)
    model = make_week(recipe)["model"]
    add_text(tmp_path / "text", "5.jsonl", TEXT + "y")

    cost = cost_of(recipe, model)

    # A quarter of the champion's 160 documents, each a sequence of 64 tokens; half of the training is new text.
    assert (cost.week.documents, cost.week.tokens, cost.week.steps) == (40, 2_563, 10)
    assert (cost.from_base.documents, cost.from_base.steps) == (200, 100)
    training = 10 * 8 * 64 / 1_000
    assert 3_600 * cost.week.hours == pytest.approx(36 / 4 + 36 / 4 + training, rel=0.01)
    assert 3_600 * cost.from_base.hours == pytest.approx(36 * (1.25 + 1 + 1.25) + 10 * training, rel=0.01)
    assert cost.week.usd is None
    assert [line.split()[0] for line in cost.lines()] == [
        "this",
        "documents",
        "tokens",
        "steps",
        "time",
        "cost",
        "cost",
    ]


def test_time_of_the_models_stages_has_the_price_of_the_machine(tmp_path: Path) -> None:
    add_text(tmp_path / "text", "1.jsonl", TEXT)
    recipe = recipe_of(tmp_path, cluster={"instance": "p5.48xlarge", "nodes": 2})
    model = make_week(recipe)["model"]
    manifest = artifact.read_manifest(model)
    assert manifest is not None
    scores = tmp_path / "store/scores/1"
    scores.mkdir(parents=True)
    (scores / "scores.json").write_text("{}")
    artifact.seal(
        scores, kind="scores", origin={"stage": "evaluate", "input model": manifest.digest}, figures={"seconds": 3_600.0},
        recipe=recipe.model_dump(mode="json"),
    )  # fmt: skip
    add_text(tmp_path / "text", "2.jsonl", TEXT + "y")

    cost = cost_of(recipe, model)

    assert cost.week.usd is not None
    assert cost.week.usd == pytest.approx(55, rel=0.3)
    assert 1 < cost.week.hours < 1.2
    most = parse_recipe(recipe.model_dump_json(), "recipe", ["retrain={max_usd: 10}"])
    with pytest.raises(
        BudgetReached, match=r"retrain.max_usd: the retraining is estimated at USD \d\d.\d\d, above USD 10.00"
    ):
        refuse_dear(most, cost.week)
    refuse_dear(recipe, cost.week)


def test_a_price_that_is_not_known_is_above_every_limit(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, retrain={"max_usd": 10})
    cost = RunCost(documents=1, tokens=1, steps=1, hours=1, usd=None)

    refuse_dear(recipe, cost)  # this machine is nobody's to rent
    rented = parse_recipe(recipe.model_dump_json(), "recipe", ["cluster.instance=p5.48xlarge"])
    with pytest.raises(RecipeError, match="the price of the champion's run is not known"):
        refuse_dear(rented, cost)


def test_a_new_source_is_taken_to_be_like_the_others(tmp_path: Path) -> None:
    add_text(tmp_path / "az", "1.jsonl", TEXT)
    add_text(tmp_path / "en", "1.jsonl", TEXT + "english")
    recipe = two_sources(tmp_path)
    model = make_week(recipe)["model"]
    sources = {
        "web": recipe.sources["web"].model_dump(mode="json"),
        "books": {"inputs": [add_text(tmp_path, "book.jsonl", 2 * TEXT)]},
    }
    phases = [{"trains": "all", "steps": 8, "lr": 0.001, "mix": {"web": 0.9, "books": 0.1}}]
    other = recipe_of(tmp_path, sources=sources, pretrain={"phases": phases, "sequence_length": 64})

    cost = cost_of(other, model)

    assert cost.week.documents == pytest.approx(80, rel=0.02)


def test_without_new_text_there_is_nothing_to_train(tmp_path: Path) -> None:
    add_text(tmp_path / "text", "1.jsonl", TEXT)
    recipe = recipe_of(tmp_path)

    cost = cost_of(recipe, make_week(recipe)["model"])

    # No price is known, so that none is shown beside a dash.
    assert cost.week == RunCost(documents=0, tokens=0, steps=0, hours=0.0, usd=None)


def test_a_plan_without_the_champions_tokens_counts_none_as_none() -> None:
    uncounted = RunCost(documents=35, tokens=0, steps=30, hours=1.0, usd=1.0)
    lines = list(WeekCost(week=uncounted, from_base=uncounted).lines())
    assert lines[2].split() == ["tokens", "—", "—"]
    assert (
        lines[-1] == "tokens —: the champion's token shards are gone, so steps are those of pretrain.phases"
    )
