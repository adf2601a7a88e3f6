"""Retrainings on new chats: which files count, what is kept, and where the run begins."""

from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import DataError
from anadil.preflight.week_cost import week_cost
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.retrain.lineage import lineage_of
from anadil.retrain.resolve import Resolution, resolve
from anadil.runtime.flow import flow_of
from anadil.runtime.job import is_kept
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.retraining import Registry, add_text, make_week, recipe_of, released


def with_chats(root: Path, **keys: object) -> Recipe:
    """A recipe of text and of chats, with a file of each."""
    add_text(root / "text", "1.jsonl")
    add_text(root / "chats", "1.jsonl", "question")
    return recipe_of(root, finetune={"inputs": [f"{root}/chats/*.jsonl"], **keys})


def first_week(registry: Registry, recipe: Recipe, champion: str = "adapter") -> dict[str, str]:
    uris = make_week(recipe, until="finetune")
    registry.set_champion(uris[champion])
    return uris


def made(resolution: Resolution) -> list[str]:
    """Stages that the derived recipe runs, and does not take from the champion."""
    derived = resolution.recipe
    return [step.stage.name for step in flow_of(derived) if not is_kept(step.stage, derived)]


@pytest.mark.parametrize("champion", ["adapter", "model"])
def test_new_chats_without_new_text_begin_with_finetuning(
    tmp_path: Path, registry: Registry, champion: str
) -> None:
    recipe = with_chats(tmp_path)
    uris = first_week(registry, recipe, champion)
    new = add_text(tmp_path / "chats", "2.jsonl", "another")

    result = resolve(recipe)

    assert (result.state, result.num_files) == ("new", 1)
    assert made(result) == ["admit", "finetune", "evaluate", "report", "release"]
    retrain = result.recipe.retrain
    assert retrain is not None
    assert (retrain.new_chats, retrain.keeps_model) == ((new,), True)
    assert {"model", "corpus", "tokens", "tokenizer"} <= set(retrain.keeps)
    assert retrain.kept("model") == uris["model"]
    assert (result.recipe.pretrain.start_from, result.recipe.evaluate.champion) == (None, uris[champion])
    assert result.recipe.finetune.inputs == recipe.finetune.inputs
    assert "chats: 1 new file, 1 file as before" in result.lines
    assert "0 new files, 1 file as before" in result.lines
    assert (
        f"no new text, so the retraining begins with finetuning, on the model {uris['model']}" in result.lines
    )
    assert parse_recipe(result.recipe.model_dump_json(), "derived") == result.recipe


def test_chats_that_were_learnt_are_not_new_again(tmp_path: Path, registry: Registry) -> None:
    recipe = with_chats(tmp_path)
    first_week(registry, recipe)
    add_text(tmp_path / "chats", "2.jsonl", "another")
    registry.set_champion(make_week(resolve(recipe).recipe, until="finetune")["adapter"], "2")

    result = resolve(recipe)

    assert result.state == "nothing"
    assert (
        "no new text and no new chats: no file of the inputs is new to the champion; nothing to do"
        in result.lines
    )


def test_a_champion_without_an_adapter_has_learnt_what_its_run_taught_beside_it(
    tmp_path: Path, registry: Registry
) -> None:
    recipe = with_chats(tmp_path)
    first_week(registry, recipe, "model")

    assert resolve(recipe).state == "nothing"

    never = recipe_of(tmp_path)
    registry.set_champion(make_week(never.model_copy(update={"seed": 1}))["model"])
    assert resolve(recipe.model_copy(update={"seed": 1})).state == "new"


def test_a_file_of_chats_that_changed_is_learnt_again(tmp_path: Path, registry: Registry) -> None:
    recipe = with_chats(tmp_path)
    first_week(registry, recipe)
    changed = add_text(tmp_path / "chats", "1.jsonl", "question, and a further one")

    result = resolve(recipe)

    assert result.recipe.retrain is not None
    assert result.recipe.retrain.new_chats == (changed,)
    assert "chats: changed since they were learnt, and learnt again: 1 file (1.jsonl)" in result.lines


def test_pairs_of_answers_are_chats_too(tmp_path: Path, registry: Registry) -> None:
    pairs = {"inputs": [f"{tmp_path}/pairs/*.jsonl"]}
    add_text(tmp_path / "pairs", "1.jsonl", "better")
    recipe = with_chats(tmp_path, preference=pairs)
    first_week(registry, recipe)
    assert resolve(recipe).state == "nothing"
    new = add_text(tmp_path / "pairs", "2.jsonl", "worse")

    result = resolve(recipe)

    assert result.recipe.retrain is not None
    assert result.recipe.retrain.new_chats == (new,)


def test_new_text_and_new_chats_are_one_retraining(tmp_path: Path, registry: Registry) -> None:
    recipe = with_chats(tmp_path)
    uris = first_week(registry, recipe)
    add_text(tmp_path / "text", "2.jsonl")
    add_text(tmp_path / "chats", "2.jsonl", "another")

    result = resolve(recipe)

    assert result.recipe.pretrain.start_from == uris["model"]
    assert result.recipe.retrain is not None
    assert not result.recipe.retrain.keeps_model
    assert result.num_files == 2
    assert "pretrain" in made(result)


def test_chats_that_are_gone_are_refused_before_they_are_forgotten(
    tmp_path: Path, registry: Registry
) -> None:
    recipe = with_chats(tmp_path)
    first_week(registry, recipe)
    Path(f"{tmp_path}/chats/1.jsonl").unlink()

    with pytest.raises(DataError, match=r"finetune\.inputs: no file matches '.*chats/\*\.jsonl'"):
        resolve(recipe)


def test_a_retraining_on_chats_costs_its_finetuning(tmp_path: Path, registry: Registry) -> None:
    recipe = with_chats(tmp_path)
    uris = first_week(registry, recipe)
    add_text(tmp_path / "chats", "2.jsonl", "question")
    Path(f"{tmp_path}/chats/2.jsonl").write_bytes(Path(f"{tmp_path}/chats/1.jsonl").read_bytes() + b"\n")
    result = resolve(recipe)

    cost = week_cost(
        recipe, result.recipe, lineage_of(released(uris["adapter"])), result.inputs, result.chats
    )

    # Twice the bytes of chats, where finetuning has taken 36 s.
    assert 3_600 * cost.week.hours == pytest.approx(2 * 36, rel=0.05)
    assert (cost.week.documents, cost.week.steps, cost.week.chat_files) == (0, 0, 2)
    assert [line.split()[:2] for line in cost.lines()][4] == ["chat", "files"]


def test_the_champions_model_is_compared_with_what_is_made_of_it(tmp_path: Path, registry: Registry) -> None:
    recipe = with_chats(tmp_path)
    uris = first_week(registry, recipe, "model")
    add_text(tmp_path / "chats", "2.jsonl", "another")
    derived = resolve(recipe).recipe
    adapter = make_week(derived, until="finetune")["adapter"]
    from anadil.core.stages import STAGES

    inputs = {word: uris[word] for word in ("corpus", "model")} | {"adapter": adapter}
    planned = planned_artifact(STAGES["evaluate"], derived, inputs, (), None)

    manifest = artifact.finished_manifest(uris["model"], "model")
    assert planned.champion is not None
    assert planned.champion.digest == manifest.digest
