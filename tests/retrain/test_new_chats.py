"""Retrainings on new chats: which files count, what is kept, and where the run begins."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import DataError, RecipeError
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.retrain.resolve import Resolution, resolve
from anadil.runtime.flow import flow_of
from anadil.runtime.job import is_kept
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.retraining import Registry, add_text, make_week, recipe_of

NEW = {"retrain": {"chats": "new"}}


def with_chats(root: Path, retrain: object = None, **keys: object) -> Recipe:
    """A recipe of text and of chats, with a file of each."""
    add_text(root / "text", "1.jsonl")
    add_text(root / "chats", "1.jsonl", "question")
    sections = {"retrain": retrain} if retrain else {}
    return recipe_of(root, finetune={"inputs": [f"{root}/chats/*.jsonl"], **keys}, **sections)


def first_week(registry: Registry, recipe: Recipe, champion: str = "adapter") -> dict[str, str]:
    uris = make_week(recipe, until="finetune")
    registry.set_champion(uris[champion])
    return uris


def taught(
    root: Path, registry: Registry, champion: str = "adapter", **keys: Any
) -> tuple[Recipe, dict[str, str], str]:
    """A recipe whose champion has learnt one file of chats, the champion's run, and a second file."""
    recipe = with_chats(root, **keys)
    uris = first_week(registry, recipe, champion)
    return recipe, uris, add_text(root / "chats", "2.jsonl", "another")


def made(resolution: Resolution) -> list[str]:
    """Stages that the derived recipe runs, and does not take from the champion."""
    derived = resolution.recipe
    return [step.stage.name for step in flow_of(derived) if not is_kept(step.stage, derived)]


@pytest.mark.parametrize("champion", ["adapter", "model"])
def test_new_chats_without_new_text_begin_with_finetuning(
    tmp_path: Path, registry: Registry, champion: str
) -> None:
    recipe, uris, new = taught(tmp_path, registry, champion)

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
    recipe, _, _ = taught(tmp_path, registry)
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
    recipe, uris, _ = taught(tmp_path, registry)
    add_text(tmp_path / "text", "2.jsonl")

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


def test_the_champions_model_is_compared_with_what_is_made_of_it(tmp_path: Path, registry: Registry) -> None:
    recipe, uris, _ = taught(tmp_path, registry, "model")
    derived = resolve(recipe).recipe
    adapter = make_week(derived, until="finetune")["adapter"]
    from anadil.core.stages import STAGES

    inputs = {word: uris[word] for word in ("corpus", "model")} | {"adapter": adapter}
    planned = planned_artifact(STAGES["evaluate"], derived, inputs, (), None)

    manifest = artifact.finished_manifest(uris["model"], "model")
    assert planned.champion is not None
    assert planned.champion.digest == manifest.digest


def test_new_chats_alone_go_on_with_the_champions_adapter_where_the_recipe_asks_for_it(
    tmp_path: Path, registry: Registry
) -> None:
    recipe = with_chats(tmp_path, **NEW)
    recipe.finetune.mix.update({"1": 1.0, "chats": 2.0, "others": 3.0})
    uris = first_week(registry, recipe)
    new = add_text(tmp_path / "chats", "2.jsonl", "another")

    result = resolve(recipe)

    assert result.recipe.finetune.start_from == uris["adapter"]
    # Both files are of the data set `chats`, after their folder.
    assert (result.recipe.finetune.inputs, result.recipe.finetune.mix) == ((new,), {"chats": 2.0})
    assert (
        f"retrain.chats: new: finetuning goes on with the champion's adapter {uris['adapter']}, and repeats no earlier chat"
        in result.lines
    )


def test_chats_of_all_weeks_are_known_of_an_adapter_that_went_on_with_others(
    tmp_path: Path, registry: Registry
) -> None:
    recipe = with_chats(tmp_path, **NEW)
    first_week(registry, recipe)
    for version in ("2", "3"):
        add_text(tmp_path / "chats", f"{version}.jsonl", f"another {version}")
        registry.set_champion(make_week(resolve(recipe).recipe, until="finetune")["adapter"], version)

    result = resolve(recipe)

    assert result.state == "nothing"
    assert result.lineage is not None
    assert len(result.lineage.adapters) == 3
    assert [Path(uri).name for uri in result.lineage.chats] == ["1.jsonl", "2.jsonl", "3.jsonl"]
    assert not any("finetune." in line for line in result.lines)


def test_chats_of_an_adapter_that_is_gone_count_as_new_and_that_is_said(
    tmp_path: Path, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    recipe, uris, _ = taught(tmp_path, registry, "adapter", **NEW)
    registry.set_champion(make_week(resolve(recipe).recipe, until="finetune")["adapter"], "2")
    shutil.rmtree(uris["adapter"])

    assert resolve(recipe).num_files == 1
    assert "restore it or name its root as storage.root. Until then its chats count as new" in caplog.text


@pytest.mark.parametrize(("champion", "text"), [("model", ""), ("adapter", "2.jsonl")])
def test_all_chats_are_learnt_where_no_adapter_fits_and_that_is_said(
    tmp_path: Path, registry: Registry, champion: str, text: str
) -> None:
    recipe, _, _ = taught(tmp_path, registry, champion, **NEW)
    if text:
        add_text(tmp_path / "text", text)

    result = resolve(recipe)

    assert (result.recipe.finetune.start_from, result.recipe.finetune.inputs) == (
        None,
        recipe.finetune.inputs,
    )
    why = "with new text the model below" if text else "the champion is no adapter"
    assert any(line.startswith(f"retrain.chats: new: {why}") for line in result.lines)


def test_an_adapter_of_another_form_is_refused_before_anything_is_trained(
    tmp_path: Path, registry: Registry
) -> None:
    first_week(registry, with_chats(tmp_path))
    add_text(tmp_path / "chats", "2.jsonl", "another")
    wider = recipe_of(tmp_path, finetune={"inputs": [f"{tmp_path}/chats/*.jsonl"], "rank": 8}, **NEW)

    with pytest.raises(
        RecipeError, match=r"another form than the recipe's adapter: finetune\.rank 64 -> 8; set"
    ):
        resolve(wider)


def test_new_chats_alone_do_not_go_with_pairs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"finetune\.preference repeats all pairs behind them"):
        recipe_of(tmp_path, finetune={"inputs": ["c.jsonl"], "preference": {"inputs": ["p.jsonl"]}}, **NEW)


def test_clocks_of_the_storage_that_jump_change_no_lineage(tmp_path: Path, registry: Registry) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    add_text(tmp_path / "chats", "1.jsonl", "question 1")
    recipe = recipe_of(tmp_path, finetune={"inputs": [f"{tmp_path}/chats/*.jsonl"]}, retrain={"chats": "new"})
    registry.set_champion(make_week(recipe, until="finetune")["adapter"])
    for week, folder in (("2", "text"), ("3", "chats"), ("4", "chats")):
        add_text(tmp_path / folder, f"{week}.jsonl", f"question {week}")
        registry.set_champion(make_week(resolve(recipe).recipe, until="finetune")["adapter"], week)
    add_text(tmp_path / "chats", "5.jsonl", "question 5")
    expected = resolve(recipe)

    manifests = sorted((tmp_path / "store").rglob("manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    for age, path in enumerate(manifests):
        os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))

    assert resolve(recipe) == expected
    assert expected.num_files == 1
