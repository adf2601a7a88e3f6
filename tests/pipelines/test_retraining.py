"""The pipeline of a retraining: its first step, what follows where there is new text, and the end."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import local
from kfp.local import config, subprocess_task_handler
from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

from anadil.artifacts import artifact
from anadil.core.errors import DataError, PreflightError
from anadil.core.stages import STAGES
from anadil.launch import kfp_steps
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release.run import FILE, ReleaseRecord
from anadil.release.runs import list_runs
from anadil.retrain.exclusive import claim, free
from anadil.runtime import kfp
from anadil.runtime.flow import RETRAIN, flow_of
from anadil.runtime.run_record import read_record, record_step, record_uri
from anadil_pipelines import laptop
from anadil_pipelines.adapt import adapt, pipeline_yaml
from anadil_pipelines.submit import with_retrain
from tests.kit.fake_kubeflow import read_as_the_server
from tests.kit.one_text import ONE_TEXT
from tests.kit.retraining import NAME, add_text, make_week, recipe_of, use_registry

RUN = "run-1"
Inputs = dict[str, Any]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose champion has read one of two files."""
    add_text(tmp_path / "text", "1.jsonl")
    recipe = with_retrain(recipe_of(tmp_path))
    use_registry(monkeypatch).set_champion(make_week(recipe)["model"])
    add_text(tmp_path / "text", "2.jsonl")
    return recipe


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Inputs]:
    """Step -> what it was given, filled while a DAG runs: first and last step are real, and stages make small artifacts."""
    given: dict[str, Inputs] = {}

    class Step:
        def __init__(self, command: list[str], **_: object) -> None:
            name = command[-3].removeprefix("anadil.")
            given[name] = json.loads(command[-1])["inputs"]
            self.code = 0
            if name not in STAGES:
                self.code = kfp_steps.main(command[-3:])
                return
            stage = STAGES[name]
            call = kfp.parse_executor_input(stage, command[-1])
            with record_step(load_recipe(call.recipe), call.run, call.step) as record:
                made = tmp_path / "made" / stage.writes
                made.mkdir(parents=True)
                for page in kfp.PAGES.values():
                    (made / page).write_text(name, encoding="utf-8")
                (made / FILE).write_text(released().text())
                manifest = artifact.seal(made, kind=stage.writes, origin={"stage": name})
                kfp.write_outputs(stage, call.outputs, str(made), manifest)
                record.uri = str(made)

        def wait(self) -> int:
            return self.code

    monkeypatch.setattr("anadil_pipelines.laptop.subprocess.Popen", Step)
    monkeypatch.setattr(kfp_steps, "send_left", lambda *_: None)  # starts a process that is no step
    monkeypatch.setattr(laptop.ProcessHandler, "steps", laptop.StepResults(run=RUN))
    monkeypatch.setattr(subprocess_task_handler, "SubprocessTaskHandler", laptop.ProcessHandler)
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    monkeypatch.setattr(ConditionEvaluator, "_resolve_pipeline_channel", staticmethod(value_of))
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"))
    return given


def value_of(channel: str, values: Any) -> Any:
    """Return the output that a condition names; kfp 2.17's local runner looks among the inputs of its DAG only."""
    task, _, output = channel.removeprefix("pipelinechannel--").partition("-")
    return values.get_task_output(task, output)


def released() -> ReleaseRecord:
    return ReleaseRecord(
        outcome="challenger", name=NAME, version="2", previous="1", reasons=("Version 2 is challenger.",), checks=(), by={}, at=""
    )  # fmt: skip


def test_all_steps_follow_the_recipe_that_the_first_one_writes(
    recipe: Recipe, steps: dict[str, Inputs], tmp_path: Path
) -> None:
    adapt(recipe, here=True, retrains=True)(base="tiny")

    flow = [step.stage.name for step in flow_of(recipe)]
    assert list(steps) == [RETRAIN, *flow, "finish"]
    place = f"{recipe.storage.root}/runs/{RUN}/recipe.json"
    derived = parse_recipe(Path(place).read_text(), "derived")
    assert derived.clean.inputs == (str(tmp_path / "text/2.jsonl"),)
    for name in flow:
        values = steps[name]["parameterValues"]
        assert values["recipe"] == place
        # Once more they would set back what the first step has derived.
        assert not any(values[each] for each in kfp.VARIED)
        assert load_recipe(kfp.varied_recipe(values)) == derived
    [listed] = list_runs(None, str(recipe.storage.root))
    assert (listed.state, listed.stage, listed.progress) == ("finished", "release", "8 of 8")
    claim(str(recipe.storage.root), NAME, "run-2")


def test_the_lineage_leads_from_the_champion_to_what_is_made(
    recipe: Recipe, steps: dict[str, Inputs]
) -> None:
    adapt(recipe, here=True, retrains=True)()

    derived = parse_recipe(Path(f"{recipe.storage.root}/runs/{RUN}/recipe.json").read_text(), "derived")
    assert derived.retrain
    assert derived.retrain.champion
    known = derived.retrain.champion
    cards = {name: given.get("artifacts", {}) for name, given in steps.items()}
    for name in ("pretrain", "evaluate", "release"):
        [card] = cards[name]["champion_artifact"]["artifacts"]
        assert card["metadata"]["sha256"] == known.digest
        assert (card["metadata"]["name"], card["metadata"]["version"]) == (NAME, "1")
    for name in ("clean", "encode", "pretrain"):
        [card] = cards[name]["earlier_artifact"]["artifacts"]
        assert card["metadata"]["corpus"] == known.artifacts["corpus"]
    assert "champion_artifact" not in cards["encode"]


def test_without_new_text_no_other_step_begins(
    recipe: Recipe, steps: dict[str, Inputs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text/2.jsonl").unlink()

    adapt(recipe, here=True, retrains=True)()

    said = capsys.readouterr().err
    assert list(steps) == [RETRAIN, "finish"]
    assert "completed: no new text since the champion" in said
    record = read_record(record_uri(str(recipe.storage.root), RUN))
    assert (record.state, record.message) == ("finished", "no new text")
    claim(str(recipe.storage.root), NAME, "run-2")


def test_a_run_beside_another_ends_before_it_asks_for_anything(
    recipe: Recipe, steps: dict[str, Inputs], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(recipe.storage.root)
    claim(root, NAME, "run-0")

    with pytest.raises(RuntimeError):
        adapt(recipe, here=True, retrains=True)()

    said = capsys.readouterr().err
    assert list(steps) == [RETRAIN, "finish"]
    assert "failed: anadil-az: run run-0 retrains it now; wait for its end" in said
    assert read_record(record_uri(root, RUN)).state == "failed"
    # It gives nobody else's claim free.
    free(root, NAME, RUN)
    with pytest.raises(PreflightError, match="run-0"):
        claim(root, NAME, RUN)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"storage": {"root": None}}, 2, "storage.root: not set"),
        ({"retrain": {"max_usd": 1e-6}, "cluster": {"instance": "ml.p5.48xlarge"}}, 7, "retrain.max_usd"),
    ],
)
def test_a_first_step_that_refuses_says_why(
    recipe: Recipe, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], code: int, words: str
) -> None:
    data = json.loads(recipe.model_dump_json()) | settings

    assert begin(json.dumps(data)) == code

    assert words in capsys.readouterr().err


def begin(recipe: str, **values: str) -> int:
    given = {"inputs": {"parameterValues": {"recipe": recipe, "run": RUN, **values}}}
    return kfp_steps.main([RETRAIN, "--executor-input", json.dumps(given | {"outputs": {}})])


def test_on_a_cluster_everything_stands_in_the_exit_handler_and_no_loop() -> None:
    settings = [ONE_TEXT, "cluster.backend=pytorchjob", "tokenizer.vocab_sizes=[2048, 4096]", "cluster.parallel_sweep=true",
        "tokenizer.trial={steps: 20}", "cluster.notifications=alerts", "cluster.instance=p5.48xlarge", "base.model=org/model"]  # fmt: skip
    recipe = with_retrain(load_recipe("smoke", settings))

    text = pipeline_yaml(recipe, retrains=True)

    read_as_the_server(text)

    spec, platform = yaml.safe_load_all(text)
    assert set(spec["root"]["dag"]["tasks"]) == {"exit-handler-1", "finish"}
    watched = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert set(watched) == {RETRAIN, "condition-2"}
    condition = watched["condition-2"]["triggerPolicy"]["condition"]
    assert condition == "inputs.parameter_values['pipelinechannel--retrain-state'] == 'new'"
    inner = spec["components"]["comp-condition-2"]["dag"]["tasks"]
    assert set(inner) == {step.name for step in flow_of(recipe)}
    assert {"recipe", *kfp.VARIED} == spec["root"]["inputDefinitions"]["parameters"].keys()
    # Pods that take the champion's artifact as it is need no more than that.
    executors = spec["deploymentSpec"]["executors"]
    for name in ("exec-tokenizer", "exec-trial"):
        assert executors[name]["container"]["resources"]["resourceMemoryRequest"] == "512Mi"
        assert "accelerator" not in executors[name]["container"]["resources"]
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    [secret] = pods["exec-release"]["secretAsEnv"]
    assert secret["secretNameParameter"]["runtimeValue"]["constant"] == "alerts"
    assert executors["exec-retrain"]["container"]["command"] == ["python", "-m", "anadil.launch", "retrain"]


def test_a_recipe_whose_place_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json"):
        kfp.varied_recipe({"recipe": str(tmp_path / "gone.json")})
