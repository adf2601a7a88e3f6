"""The DAG by kfp's own local runner, each step a stand-in that makes a small artifact at once."""

import json
from pathlib import Path
from typing import Any

import pytest
from kfp import local
from kfp.local import config, subprocess_task_handler

from anadil.artifacts import artifact
from anadil.core.errors import RecipeError
from anadil.core.stages import FLOW, STAGES
from anadil.launch import kfp_steps
from anadil.recipe.load import load_recipe, shipped
from anadil.runtime import kfp
from anadil.runtime.flow import Step as FlowStep
from anadil_pipelines import laptop
from anadil_pipelines.adapt import adapt
from tests.kit.one_text import ONE_TEXT

Inputs = dict[str, Any]
RECIPE = load_recipe(
    "smoke",
    [ONE_TEXT, "tokenizer.trial={steps: 20}", "merge.base_share=0.25", "evaluate.tasks=[az]", "retrain={}"],
)


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Inputs]:
    """Stage -> what its step was given, filled while a DAG runs."""
    given: dict[str, Inputs] = {}

    class Step:
        def __init__(self, command: list[str], **_: object) -> None:
            name, executor_input = command[-3].removeprefix("anadil."), json.loads(command[-1])
            given[name] = executor_input["inputs"]
            stage = STAGES[name]
            made = tmp_path / "root" / stage.writes
            made.mkdir(parents=True)
            for page in kfp.PAGES.values():
                (made / page).write_text(name, encoding="utf-8")
            manifest = artifact.seal(made, kind=stage.writes, origin={}, figures={"loss": 0.5})
            call = kfp.parse_executor_input(stage, command[-1])
            kfp.write_outputs(stage, call.outputs, str(made), manifest)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("anadil_pipelines.laptop.subprocess.Popen", Step)
    monkeypatch.setattr(laptop.ProcessHandler, "steps", laptop.StepResults())
    monkeypatch.setattr(subprocess_task_handler, "SubprocessTaskHandler", laptop.ProcessHandler)
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    return given


def test_each_step_gets_the_cards_of_what_it_reads_and_they_say_where_it_lies(
    steps: dict[str, Inputs], tmp_path: Path
) -> None:
    adapt(RECIPE, here=True)()

    # Without sources nothing is compared, and the base writes nothing.
    assert set(steps) == set(STAGES) - {"replay", "overlap", "distill"}
    for stage in (each for each in FLOW if each.name in steps):
        artifacts = steps[stage.name].get("artifacts", {})
        reads = FlowStep(stage=stage).reads_in_run(RECIPE)
        assert set(artifacts) == {f"{word}_artifact" for word in reads}
        for word in reads:
            [card] = artifacts[f"{word}_artifact"]["artifacts"]
            manifest = artifact.read_manifest(str(tmp_path / "root" / word))
            assert manifest is not None
            assert card["metadata"]["uri"] == str(tmp_path / "root" / word)
            assert card["metadata"]["sha256"] == manifest.digest
            assert card["metadata"]["loss"] == 0.5
            assert Path(card["uri"]).stat().st_size < 1_000


def test_what_a_run_varies_reaches_every_step(steps: dict[str, Inputs]) -> None:
    adapt(RECIPE, here=True)(base="org/other", steps="40", root="/fsx/root")

    for name, given in steps.items():
        text = json.dumps({"inputs": given, "outputs": {}})
        recipe = load_recipe(kfp.parse_executor_input(STAGES[name], text).recipe)
        assert (recipe.base.model, recipe.storage.root) == ("org/other", "/fsx/root")
        assert [phase.steps for phase in recipe.pretrain.phases] == [60, 40]
        assert recipe.tokenizer == RECIPE.tokenizer


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ({"base": "meta-llama/Llama-3.2-1B"}, ["base.model=meta-llama/Llama-3.2-1B"]),
        ({"steps": "[10, 20]"}, ["pretrain.phases.0.steps=10", "pretrain.phases.1.steps=20"]),
        ({"steps": "20"}, ["pretrain.phases.1.steps=20"]),
        ({"learning_rate": " 1e-4 "}, ["pretrain.phases.1.lr=1e-4"]),
        ({"vocabulary": "50000"}, ["tokenizer.vocab_sizes=[50000]"]),
        ({"vocabulary": "auto"}, ["tokenizer.vocab_sizes=auto"]),
        ({"inputs": "[a.jsonl, b.jsonl]"}, ["clean.inputs=[a.jsonl, b.jsonl]"]),
        ({"root": "s3://bucket/root"}, ["storage.root=s3://bucket/root"]),
        (dict.fromkeys(kfp.VARIED, ""), []),
    ],
    ids=str,
)
def test_a_parameter_sets_its_key_of_the_recipe(values: dict[str, str], settings: list[str]) -> None:
    given = load_recipe("smoke", [ONE_TEXT])

    varied = load_recipe(kfp.varied_recipe({"recipe": given.model_dump_json(), **values}))

    assert varied == load_recipe("smoke", [ONE_TEXT, *settings])


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_what_submit_sends_leaves_a_recipe_as_it_is(path: Path) -> None:
    recipe = load_recipe(str(path))

    varied = kfp.varied_recipe({"recipe": recipe.model_dump_json(), **kfp.varied_values(recipe)})

    assert load_recipe(varied) == recipe
    assert set(kfp.varied_values(recipe)) == set(kfp.VARIED)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"steps": "[1, 2, 3]"}, "parameter steps: '[1, 2, 3]' has 3 values, and pretrain.phases has 2"),
        ({"steps": "many"}, 'pretrain.phases.1.steps: must be a whole number (got "many")'),
        ({"vocabulary": "[1, "}, "parameter vocabulary: "),
        ({"learning_rate": "0"}, "pretrain.phases.1.lr: "),
    ],
    ids=str,
)
def test_a_wrong_value_is_told_by_its_name(values: dict[str, str], told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(kfp.varied_recipe({"recipe": load_recipe("smoke").model_dump_json(), **values}))

    assert told in str(caught.value)


def test_the_exit_handler_looks_where_the_run_was_told_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str | None, str]] = []
    monkeypatch.setattr(kfp_steps, "finish", lambda recipe, run, _: told.append((recipe.storage.root, run)))
    values = {"recipe": RECIPE.model_dump_json(), "run": "run-1", "root": "s3://bucket/other"}

    code = kfp_steps.main(["finish", "--executor-input", json.dumps({"inputs": {"parameterValues": values}})])

    assert code == 0
    assert told == [("s3://bucket/other", "run-1")]
