import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import anadil
from anadil import __version__
from anadil.core.stage import PerSource
from anadil.core.stages import FLOW, LAUNCHABLE, STAGES
from anadil.recipe.load import load_recipe
from anadil.runtime.flow import Step
from anadil.runtime.kfp import VARIED
from anadil_pipelines.adapt import pipeline_yaml, write_pipeline
from tests.kit.fake_kubeflow import read_as_the_server
from tests.kit.one_text import ONE_TEXT

from .golden import GOLDEN, WHOLE
from .golden import compiled as compiled_by_command

RECIPE = load_recipe(
    "smoke",
    [ONE_TEXT, "cluster.image=registry.example/{stage}:{version}-cuda", "tokenizer.trial={steps: 20}", "merge.base_share=0.25", "evaluate.tasks=[az]", "retrain={}"],
)  # fmt: skip
LEFT_OUT = {"replay", "distill", "overlap", "admit", "merge", "trial", "tasks", "release"}
"""Stages that a recipe has only where it asks for them."""
ALONE = tuple(stage.name for stage in FLOW if stage.per_source in (None, PerSource()))
"""Stages of a recipe without sources."""
ON_A_CLUSTER = ["cluster.backend=pytorchjob", "tokenizer.vocab_sizes=[2048, 4096]"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("compiled") / "pipeline.yaml"
    write_pipeline(RECIPE, path)
    document: dict[str, Any] = next(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    return document


def spec_of(*settings: str) -> dict[str, Any]:
    spec: dict[str, Any] = next(
        yaml.safe_load_all(pipeline_yaml(load_recipe("smoke", [ONE_TEXT, *settings])))
    )
    return spec


def tasks(compiled: dict[str, Any], group: str = "") -> dict[str, Any]:
    part = compiled["components"][f"comp-{group}"] if group else compiled["root"]
    steps: dict[str, Any] = part["dag"]["tasks"]
    return steps


def test_a_source_is_compared_with_all_others_in_a_step_of_its_own(tmp_path: Path) -> None:
    sources = {name: {"inputs": [f"/data/{name}.jsonl"]} for name in ("web", "news", "law")}
    phase = {"trains": "all", "steps": 1, "lr": 0.001, "mix": dict.fromkeys(sources, 1)}
    data = {"language": "az", "sources": sources, "pretrain": {"phases": [phase]}}
    recipe = RECIPE.model_validate_json(json.dumps(data))
    path = tmp_path / "pipeline.yaml"

    write_pipeline(recipe, path)

    steps = tasks(next(yaml.safe_load_all(path.read_text(encoding="utf-8"))))
    for name in sources:
        task = steps[f"overlap-{name}"]
        assert set(task["dependentTasks"]) == {f"clean-{each}" for each in sources}
        assert {f"corpus_{each}" for each in sources} < set(task["inputs"]["parameters"])
        assert task["inputs"]["parameters"]["source"] == {"runtimeValue": {"constant": name}}
        assert f"overlap-{name}" in steps[f"encode-{name}"]["dependentTasks"]


def test_a_base_writes_in_a_step_of_its_own_that_cleaning_waits_for(tmp_path: Path) -> None:
    sources = {"web": {"inputs": ["/data/web.jsonl"]}, "self": {"written_by": "base", "tokens": "5M"}}
    phase = {"trains": "all", "steps": 1, "lr": 0.001, "mix": dict.fromkeys(sources, 1)}
    data = {"language": "az", "sources": sources, "pretrain": {"phases": [phase]}}
    path = tmp_path / "pipeline.yaml"
    write_pipeline(RECIPE.model_validate_json(json.dumps({**data, "clean": {"engine": "job"}})), path)
    spec = next(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    steps = tasks(spec)

    assert "dependentTasks" not in steps["replay-self"]
    assert set(steps["replay-self"]["inputs"]["parameters"]) == {"recipe", "run", "source", *VARIED}
    assert steps["clean-self"]["dependentTasks"] == ["replay-self"]
    assert "dependentTasks" not in steps["clean-web"]
    assert "clean-self" not in steps["tokenizer"]["dependentTasks"]
    assert "replay-web" not in steps
    name = steps["replay-self"]["componentRef"]["name"].replace("comp", "exec")
    container = spec["deploymentSpec"]["executors"][name]["container"]
    assert container["image"].startswith("anadil/evaluate:")
    assert container["command"] == ["python", "-m", "anadil.replay"]


@pytest.mark.parametrize("name", ALONE)
def test_a_task_takes_the_recipe_and_what_its_stage_reads_and_depends_on_who_writes_it(
    compiled: dict[str, Any], name: str
) -> None:
    reads, task = Step(stage=STAGES[name]).reads_in_run(RECIPE), tasks(compiled)[name]
    given = task["inputs"]["parameters"]
    writers = {stage.writes: stage.name for stage in FLOW}

    more = {"tokenizer": {"candidates"}, "trial": {"strategy", "finalists"}}.get(name, set())
    assert set(task.get("dependentTasks", ())) == {writers[word] for word in reads}
    assert set(given) == {"recipe", *VARIED, "run", *reads, *more}
    for parameter in ("recipe", *VARIED):
        assert given[parameter] == {"componentInputParameter": parameter}
    assert given["run"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
    for word in reads:
        assert given[word]["taskOutputParameter"]["outputParameterKey"] == word
    # The lineage says what each step read.
    assert task["inputs"].get("artifacts", {}) == {
        f"{word}_artifact": {
            "taskOutputArtifact": {"producerTask": writers[word], "outputArtifactKey": f"{word}_artifact"}
        }
        for word in reads
    }


@pytest.mark.parametrize("name", ALONE)
def test_a_step_gives_its_artifact_and_metrics_by_the_entry_point_of_its_image(
    compiled: dict[str, Any], name: str
) -> None:
    outputs = compiled["components"][f"comp-{name}"]["outputDefinitions"]
    container = compiled["deploymentSpec"]["executors"][f"exec-{name}"]["container"]

    assert set(outputs["parameters"]) == {STAGES[name].writes}
    assert outputs["artifacts"]["metrics"]["artifactType"]["schemaTitle"] == "system.Metrics"
    word = STAGES[name].writes
    kinds = {"corpus": "Dataset", "tokens": "Dataset"} | dict.fromkeys(
        ("model", "merged", "adapter"), "Model"
    )
    kind = kinds.get(word, "Artifact")
    assert outputs["artifacts"][f"{word}_artifact"]["artifactType"]["schemaTitle"] == f"system.{kind}"
    assert container["command"] == ["python", "-m", f"anadil.{name}"]
    assert container["args"] == ["--executor-input", "{{$}}"]
    assert container["image"] == f"registry.example/{STAGES[name].pod.image}:{__version__}-cuda"


def test_the_defaults_of_the_parameters_are_the_recipe_and_what_leaves_it_as_it_is(
    compiled: dict[str, Any],
) -> None:
    parameters = compiled["root"]["inputDefinitions"]["parameters"]

    assert set(parameters) == {"recipe", *VARIED}
    recipe = parameters.pop("recipe")["defaultValue"]
    assert load_recipe(recipe) == RECIPE
    assert json.loads(recipe)["language"] == "az"
    for name, parameter in parameters.items():
        assert parameter["defaultValue"] == ""
        assert parameter["description"] == f"{VARIED[name]} of the recipe; empty, as the recipe says"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_golden_pipelines_are_those_of_the_program(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GOLDEN[path](), "the pipeline changed; run: make golden"


@pytest.mark.parametrize("name", WHOLE)
def test_compiled_pipelines_are_what_the_server_reads(name: str) -> None:
    read = read_as_the_server(compiled_by_command(*WHOLE[name]))

    executors = read["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors.keys() == read["pipeline_spec"]["deploymentSpec"]["executors"].keys()


def test_each_folder_that_starts_is_a_stage_and_each_image_an_extra_of_a_laptop() -> None:
    package = Path(anadil.__file__).parent
    # Tools that can be started, and make no artifact.
    folders = {path.parent.name for path in package.glob("*/__main__.py")} - {"launch", "measure"}
    project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]

    assert folders == set(STAGES)
    images = {stage.pod.image for stage in FLOW}
    assert images <= set(extras)
    assert images <= set(re.split(r"\W", extras["laptop"][0]))


def test_a_pod_with_gpus_never_encodes() -> None:
    spec = spec_of("cluster.backend=pytorchjob", "tokenizer.trial={steps: 20}")
    watched = [name for name in tasks(spec) if name.startswith("exit-handler")]
    steps = {name: task for each in ["", *watched] for name, task in tasks(spec, each).items()}
    read = steps["pretrain"]["inputs"]["parameters"]

    # It encodes where it is given a corpus and no tokens.
    assert "corpus" not in read
    assert {"tokens", "tokenizer", "trial"} <= set(read)
    executor = spec["deploymentSpec"]["executors"]["exec-encode"]["container"]
    assert "/tokenizer:" in executor["image"]
    assert "accelerator" not in executor["resources"]


def test_without_chats_there_is_no_finetuning_step() -> None:
    found = tasks(spec_of("finetune.inputs=[]"))

    assert set(found) == set(STAGES) - LEFT_OUT - {"finetune"}
    assert found["evaluate"]["inputs"]["parameters"]["adapter"] == {"runtimeValue": {"constant": ""}}
    assert set(found["evaluate"]["inputs"]["artifacts"]) == {"corpus_artifact", "model_artifact"}


def test_on_a_cluster_training_is_launched_by_the_tools(compiled: dict[str, Any]) -> None:
    spec = spec_of(*ON_A_CLUSTER, "tokenizer.trial={steps: 20}", "merge.base_share=0.25")

    for name in LAUNCHABLE:
        container = spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
        assert container["command"] == ["python", "-m", "anadil.launch", name]
        assert container["args"] == ["--executor-input", "{{$}}"]
        assert container["image"] == f"anadil/tools:{__version__}"
        alone, launched = (each["components"][f"comp-{name}"] for each in (compiled, spec))
        assert launched["inputDefinitions"] == alone["inputDefinitions"]
        assert launched["outputDefinitions"] == alone["outputDefinitions"]


def test_the_exit_handler_watches_all_stages_and_runs_however_they_end() -> None:
    spec = spec_of(*ON_A_CLUSTER)

    assert set(tasks(spec)) == {"exit-handler-1", "finish"}
    assert set(tasks(spec, "exit-handler-1")) == set(STAGES) - LEFT_OUT
    finish = tasks(spec)["finish"]
    assert finish["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert finish["dependentTasks"] == ["exit-handler-1"]
    assert set(finish["inputs"]["parameters"]) == {"recipe", *VARIED, "run"}
    container = spec["deploymentSpec"]["executors"]["exec-finish"]["container"]
    assert container["command"] == ["python", "-m", "anadil.launch", "finish"]


@pytest.mark.parametrize(
    ("setting", "finish"),
    [
        ("cluster.parallel_sweep=false", set()),
        ("cluster.notifications=slack", {"finish", "exit-handler-1"}),
    ],
)
def test_an_exit_handler_is_there_where_something_can_be_left_behind_or_somebody_is_told(
    setting: str, finish: set[str]
) -> None:
    assert set(tasks(spec_of(setting))) == (finish or set(STAGES) - LEFT_OUT)


def test_a_parallel_sweep_trains_each_size_in_a_pod_of_its_own() -> None:
    spec = spec_of(*ON_A_CLUSTER, "cluster.parallel_sweep=true")

    [loop] = [task for name, task in tasks(spec).items() if name.startswith("for-loop")]
    group = loop["componentRef"]["name"].removeprefix("comp-")
    [candidate] = tasks(spec, group).values()
    gathered = tasks(spec)["tokenizer"]["inputs"]["parameters"]["candidates"]
    command = spec["deploymentSpec"]["executors"]["exec-candidate"]["container"]["command"]
    assert json.loads(loop["parameterIterator"]["items"]["raw"]) == ["2048", "4096"]
    assert loop["iteratorPolicy"]["parallelismLimit"] >= 2
    assert candidate["inputs"]["parameters"]["size"]["componentInputParameter"].endswith("loop-item-param-1")
    assert set(candidate["inputs"]["parameters"]) == {"recipe", *VARIED, "corpus", "size"}
    assert gathered["taskOutputParameter"]["producerTask"] == group
    assert command == ["python", "-m", "anadil.tokenizer"]
    # A loop is never inside the exit handler.
    [watched] = [name for name in tasks(spec) if name.startswith("exit-handler")]
    assert set(tasks(spec)) == {"clean", "for-loop-2", "tokenizer", watched, "finish"}
    assert set(tasks(spec, watched)) == {"encode", "pretrain", "finetune", "evaluate", "report"}


def test_a_parallel_trial_trains_with_each_strategy_in_a_pod_of_its_own_before_the_exit_handler() -> None:
    spec = spec_of("cluster.backend=pytorchjob", "cluster.parallel_sweep=true", "tokenizer.trial={steps: 20}")

    [loop] = [task for name, task in tasks(spec).items() if name.startswith("for-loop")]
    [finalist] = tasks(spec, loop["componentRef"]["name"].removeprefix("comp-")).values()
    [watched] = [name for name in tasks(spec) if name.startswith("exit-handler")]
    [collects] = [
        task for task in tasks(spec).values() if "finalists" in task.get("inputs", {}).get("parameters", {})
    ]
    assert json.loads(loop["parameterIterator"]["items"]["raw"]) == ["base", "extend", "replace"]
    assert finalist["inputs"]["parameters"]["strategy"]["componentInputParameter"].endswith(
        "loop-item-param-1"
    )
    assert collects["inputs"]["parameters"]["strategy"] == {"runtimeValue": {"constant": ""}}
    # By the run's id the exit handler finds the jobs that it has to stop.
    assert finalist["inputs"]["parameters"]["run"] == collects["inputs"]["parameters"]["run"]
    assert set(tasks(spec, watched)) == {"pretrain", "finetune", "evaluate", "report"}
    commands = [each["container"]["command"] for each in spec["deploymentSpec"]["executors"].values()]
    assert commands.count(["python", "-m", "anadil.launch", "trial"]) == 2


@pytest.mark.parametrize(
    "setting", ["tokenizer.vocab_sizes=[4096]", "tokenizer.strategies=[base]", "tokenizer.vocab_sizes=auto"]
)
def test_one_candidate_or_sizes_that_only_the_corpus_tells_need_no_sweep(setting: str) -> None:
    steps = tasks(spec_of("tokenizer.vocab_sizes=[2048, 4096]", "cluster.parallel_sweep=true", setting))

    assert set(steps) == set(STAGES) - LEFT_OUT
    assert steps["tokenizer"]["inputs"]["parameters"]["candidates"] == {"runtimeValue": {"constant": []}}
