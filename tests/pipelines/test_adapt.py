import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import anadil
from anadil import __version__
from anadil.errors import RecipeError
from anadil.flow import FLOW, STAGES
from anadil.recipe import load_recipe
from anadil_pipelines.adapt import write_pipeline
from anadil_pipelines.steps import STEPS
from tests.golden.render import GOLDEN, PIPELINE

RECIPE = load_recipe("smoke", ["cluster.image=registry.example/{stage}:{version}-cuda"])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("compiled") / "pipeline.yaml"
    write_pipeline(RECIPE, path)
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def tasks(compiled: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = compiled["root"]["dag"]["tasks"]
    return found


def test_the_pipeline_has_a_task_for_every_stage(compiled: dict[str, Any]) -> None:
    assert set(tasks(compiled)) == {stage.name for stage in FLOW}
    assert [stage.name for stage in FLOW] == [
        "clean",
        "tokenizer",
        "pretrain",
        "finetune",
        "evaluate",
        "report",
    ]


@pytest.mark.parametrize("name", STAGES)
def test_a_task_depends_on_the_stages_that_write_what_it_reads(compiled: dict[str, Any], name: str) -> None:
    writers = {stage.writes: stage.name for stage in FLOW}

    task = tasks(compiled)[name]

    assert set(task.get("dependentTasks", ())) == {writers[word] for word in STAGES[name].reads}


@pytest.mark.parametrize("name", STAGES)
def test_a_task_takes_the_recipe_and_what_its_stage_reads(compiled: dict[str, Any], name: str) -> None:
    given = tasks(compiled)[name]["inputs"]["parameters"]

    assert set(given) == {"recipe", *STAGES[name].reads}
    assert given["recipe"] == {"componentInputParameter": "recipe"}
    for word in STAGES[name].reads:
        assert given[word]["taskOutputParameter"]["outputParameterKey"] == word


@pytest.mark.parametrize("name", STAGES)
def test_a_step_gives_its_artifact_and_metrics(compiled: dict[str, Any], name: str) -> None:
    outputs = compiled["components"][f"comp-{name}"]["outputDefinitions"]

    assert set(outputs["parameters"]) == {STAGES[name].writes}
    assert outputs["artifacts"]["metrics"]["artifactType"]["schemaTitle"] == "system.Metrics"


@pytest.mark.parametrize("name", STAGES)
def test_a_step_runs_the_entry_point_of_its_image(compiled: dict[str, Any], name: str) -> None:
    container = compiled["deploymentSpec"]["executors"][f"exec-{name}"]["container"]

    assert container["command"] == ["python", "-m", f"anadil.{name}"]
    assert container["args"] == ["--executor-input", "{{$}}"]
    assert container["image"] == f"registry.example/{name}:{__version__}-cuda"


def test_no_step_is_cached_by_its_names(compiled: dict[str, Any]) -> None:
    assert all(not task["cachingOptions"].get("enableCache") for task in tasks(compiled).values())


def test_the_default_of_the_one_parameter_is_the_recipe(compiled: dict[str, Any]) -> None:
    [(name, parameter)] = compiled["root"]["inputDefinitions"]["parameters"].items()

    assert name == "recipe"
    assert load_recipe(parameter["defaultValue"]) == RECIPE
    assert json.loads(parameter["defaultValue"])["language"] == "az"


def test_the_report_step_shows_its_pages(compiled: dict[str, Any]) -> None:
    artifacts = compiled["components"]["comp-report"]["outputDefinitions"]["artifacts"]

    assert artifacts["html"]["artifactType"]["schemaTitle"] == "system.HTML"
    assert artifacts["markdown"]["artifactType"]["schemaTitle"] == "system.Markdown"


def test_the_golden_pipeline_is_that_of_the_program() -> None:
    assert PIPELINE.read_text(encoding="utf-8") == GOLDEN[PIPELINE](), (
        "the pipeline changed; run: make golden"
    )


def test_a_pipeline_needs_the_name_of_a_yaml_file(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"pipeline\.json: a pipeline is YAML; give a name that ends in \.yaml"
    ):
        write_pipeline(RECIPE, tmp_path / "pipeline.json")


def test_flow_steps_folders_and_extras_name_the_same_stages() -> None:
    package = Path(anadil.__file__).parent
    # `measure` is a tool that can be started, and makes no artifact.
    folders = {path.parent.name for path in package.glob("*/__main__.py")} - {"measure"}
    project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]

    assert set(STEPS) == folders == set(STAGES)
    assert set(STAGES) <= set(extras)
    for name in STAGES:
        assert name in extras["laptop"][0]


def test_without_chats_there_is_no_finetuning_step(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"

    write_pipeline(load_recipe("smoke", ["finetune.inputs=[]"]), path)

    found = tasks(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert set(found) == {stage.name for stage in FLOW} - {"finetune"}
    assert found["evaluate"]["inputs"]["parameters"]["adapter"] == {"runtimeValue": {"constant": ""}}
