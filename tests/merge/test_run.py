"""The stage merge: what it reads, what its key is made of, what it writes."""

import json
from pathlib import Path

import pytest
import torch

from anadil.artifacts.artifact import Manifest
from anadil.core.candidates import answers, before_finetuning
from anadil.core.errors import DataError, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.finetune.run import _from_last_form
from anadil.merge.check import inspect_merge
from anadil.merge.run import run
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Base, Recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.flow import Step, flow_of
from anadil.runtime.job import Job
from anadil.runtime.planned_artifact import refuse_strangers
from anadil.text.corpus import write_documents
from tests.evaluate.conftest import TEXTS, document
from tests.kit.merging import Models, make_models, tensors_of

ONE_TEXT = "clean: {inputs: [a.txt]}\nfinetune: {inputs: [b.jsonl]}\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Not to be changed."""
    return make_models(tmp_path_factory.mktemp("models"), "extend")


def recipe_of(models: Models, merge: str) -> Recipe:
    return parse_recipe(f"{ONE_TEXT}base: {{model: {models.base}}}\nmerge: {merge}", "r.yaml")


def job_of(models: Models, folder: Path, recipe: Recipe) -> Job:
    (folder / "out").mkdir()
    inputs = {"model": models.model, "tokenizer": models.tokenizer}
    return Job(
        recipe=recipe, inputs=inputs, out=folder / "out", work=folder / "w", base_cache=folder / "base"
    )


def reads(stage: str, recipe: Recipe) -> list[str]:
    return [*Step(stage=STAGES[stage]).reads(recipe)]


def test_finetuning_reads_the_merged_model_and_the_trained_one_is_not_copied_there() -> None:
    plain = parse_recipe(ONE_TEXT, "r.yaml")
    merging = parse_recipe(f"{ONE_TEXT}merge: {{base_share: 0.5}}", "r.yaml")

    assert (reads("finetune", plain), reads("finetune", merging)) == (["model"], ["merged"])
    assert "merge" not in {step.name for step in flow_of(plain)}
    assert [step.name for step in flow_of(merging)][3:6] == ["pretrain", "merge", "finetune"]


def test_a_corpus_is_read_only_to_measure() -> None:
    given = parse_recipe(f"{ONE_TEXT}merge: {{base_share: 0.5}}", "r.yaml")
    chosen = parse_recipe(f"{ONE_TEXT}merge: {{base_share: auto}}", "r.yaml")

    assert "corpus" not in reads("merge", given)
    assert "corpus" in reads("merge", chosen)


def test_other_weights_of_an_added_model_are_another_merge(models: Models) -> None:
    recipe = recipe_of(models, f"{{add: [{{model: {models.instruct}, minus: {models.base}}}]}}")
    origin = stage_origin(STAGES["merge"], recipe, {}, ())
    note = models.instruct / "added.json"

    note.write_text("{}")
    changed = stage_origin(STAGES["merge"], recipe, {}, ())
    note.unlink()

    assert {name for name in origin if origin[name] != changed[name]} == {f"base files of {models.instruct}"}


def test_a_chat_vector_is_told_and_makes_a_model_that_answers(models: Models, tmp_path: Path) -> None:
    vector = f"{{model: {models.instruct}, minus: {models.base}, weight: 0.5}}"
    job = job_of(models, tmp_path, recipe_of(models, f"{{base_share: 0.25, add: [{vector}]}}"))

    figures = run(job)

    table = json.loads((job.out / "merge.json").read_text(encoding="utf-8"))
    assert (table["base_share"], table["add"][0]["weight"]) == (0.25, 0.5)
    assert "<|im_end|>" in table["add"][0]["control_tokens"]
    assert answers("merged", figures)
    assert "llm/v1/chat" in (job.out / "MLmodel").read_text(encoding="utf-8")
    assert {"merge.json", "MLmodel"} < set(job.varying)


def test_a_share_of_the_base_alone_makes_a_model_that_continues_text(models: Models, tmp_path: Path) -> None:
    figures = run(job_of(models, tmp_path, recipe_of(models, "{base_share: 0.25}")))

    assert not answers("merged", figures)


def test_values_that_are_chosen_are_those_of_the_model_and_its_table(models: Models, tmp_path: Path) -> None:
    vector = f"{{model: {models.instruct}, minus: {models.base}, weight: auto}}"
    recipe = recipe_of(models, f"{{base_share: auto, add: [{vector}]}}")
    job = job_of(models, tmp_path, recipe)
    job.inputs["corpus"] = tmp_path / "corpus"
    write_documents(
        tmp_path / "corpus", "heldout", [document(f"{text} {at}") for at, text in enumerate(TEXTS * 2)]
    )

    figures = run(job)

    table = json.loads((job.out / "merge.json").read_text(encoding="utf-8"))
    chosen = table["chosen"]
    assert table["base_share"] == chosen["base_share"] == figures["base_share"]
    assert [each["weight"] for each in table["add"]] == chosen["weights"]
    assert len(table["points"]) == 7 + 4
    ends, written = models.open(chat=True), tensors_of(job.out)
    for name, tensor in written.items():
        expected = ends.tensor(name, chosen["base_share"], chosen["weights"])
        assert torch.equal(tensor.float(), expected.to(tensor.dtype).float()), name


def test_the_tokenizer_of_another_training_is_refused(models: Models, tmp_path: Path) -> None:
    job = job_of(models, tmp_path, recipe_of(models, "{base_share: 0.25}"))
    job.inputs["tokenizer"] = models.base

    with pytest.raises(DataError, match=r"is not the tokenizer that .* was trained with; give that one"):
        run(job)


def test_a_recipe_that_merges_nothing_is_refused(models: Models, tmp_path: Path) -> None:
    recipe = parse_recipe(ONE_TEXT, "r.yaml")

    with pytest.raises(RecipeError, match=r"merge: is not set; .*--set merge.base_share=0.25"):
        run(job_of(models, tmp_path, recipe))


def test_finetuning_names_the_merged_model_as_its_base(models: Models, tmp_path: Path) -> None:
    inputs, uris = {"merged": models.model}, {"merged": "s3://b/merged/1"}
    job = Job(recipe=Recipe(), inputs=inputs, uris=uris, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    began = _from_last_form(job)

    assert (began.inputs["model"], began.uris["model"]) == (models.model, "s3://b/merged/1")
    assert [before_finetuning(names) for names in (["adapted"], ["adapted", "merged"])] == [
        "adapted",
        "merged",
    ]


def test_a_model_of_another_shape_is_refused_before_the_run(models: Models, tmp_path: Path) -> None:
    other = make_models(tmp_path / "other", kind="qwen3").base
    recipe = recipe_of(models, f"{{add: [{{model: {other}, minus: {models.base}}}]}}")

    with pytest.raises(DataError, match=r"merge.add.0.model: .* is another model than base.model"):
        inspect_merge(recipe)


def test_a_directory_that_is_not_there_is_told_with_its_key_before_the_run(models: Models) -> None:
    recipe = recipe_of(models, f"{{add: [{{model: {models.instruct}, minus: /nowhere}}]}}")

    with pytest.raises(DataError, match=r"merge.add.0.minus: /nowhere: no such directory"):
        inspect_merge(recipe)


def test_models_that_fit_are_counted(models: Models) -> None:
    recipe = recipe_of(models, f"{{add: [{{model: {models.instruct}, minus: {models.base}}}]}}")

    assert inspect_merge(recipe).detail == "2 models found, 2 of the base's shape"

    # Its base is made, or fetched, when the run needs it.
    later = recipe.model_copy(update={"base": Base(model="tiny")})
    assert inspect_merge(later).detail == "2 models found, to be compared with the base when they are merged"


@pytest.mark.parametrize(
    ("later", "earlier"), [("merged", "model"), ("adapter", "merged"), ("scores", "merged")]
)
def test_what_was_made_of_another_model_is_refused_beside_this_one(later: str, earlier: str) -> None:
    made_of_another = Manifest(kind=later, key="1", origin={f"input {earlier}": "0" * 64}, files={})
    this_one = Manifest(kind=earlier, key="2", origin={}, files={})

    with pytest.raises(IntegrityError, match=f"a: is made from the {earlier} 0000000000000000, and b is"):
        refuse_strangers({later: made_of_another, earlier: this_one}, {later: "a", earlier: "b"})
