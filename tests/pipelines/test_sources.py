import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp.local import config, subprocess_task_handler

from anadil.artifacts import artifact, storage
from anadil.cli import main
from anadil.recipe.load import load_recipe, shipped
from anadil.recipe.sections import Recipe
from anadil.release.runs import list_runs
from anadil.runtime.tracking_spool import SPOOL_VARIABLE
from anadil_pipelines.adapt import pipeline_yaml
from anadil_pipelines.steps import with_clean_workers

SOURCES = "sources={web: {inputs: [/d/w]}, law: {inputs: [/d/l]}, en: {inputs: [/d/e], language: en}}"
MIX = "pretrain.phases=[{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .8, law: .1, en: .1}}]"


def recipe_of(*settings: str) -> Recipe:
    return load_recipe("smoke", ["clean.inputs=[]", SOURCES, MIX, *settings])


def tasks_of(recipe: Recipe) -> dict[str, Any]:
    spec: dict[str, Any] = next(yaml.safe_load_all(pipeline_yaml(recipe)))
    return {"tasks": spec["root"]["dag"]["tasks"], "executors": spec["deploymentSpec"]["executors"]}


def test_a_source_has_a_step_of_its_own_in_the_dag() -> None:
    dag = tasks_of(recipe_of())

    cleans = {name: task for name, task in dag["tasks"].items() if name.startswith("clean")}
    assert list(cleans) == ["clean-en", "clean-law", "clean-web"]
    for name, task in cleans.items():
        source = task["inputs"]["parameters"]["source"]["runtimeValue"]["constant"]
        assert (name, task["taskInfo"]["name"]) == (f"clean-{source}", f"clean-{source}")
        assert "dependentTasks" not in task
        assert dag["executors"][f"exec-{name}"]["container"]["command"][-1] == "anadil.clean"


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_a_shipped_recipe_has_the_steps_of_its_sources(path: Path) -> None:
    recipe = load_recipe(str(path))
    spec: dict[str, Any] = next(yaml.safe_load_all(pipeline_yaml(recipe)))
    # On a cluster the steps stand inside the exit handler.
    dags = [spec["root"], *(each for each in spec["components"].values() if "dag" in each)]
    tasks = {name: task for each in dags for name, task in each["dag"]["tasks"].items()}

    for stage in ("clean", "overlap", "encode"):
        assert {name for name in tasks if name.startswith(stage)} == {
            f"{stage}-{each}" for each in recipe.sources
        }
    read = tasks["pretrain"]["inputs"]["parameters"]
    assert {word for word in read if word.startswith(("tokens", "corpus"))} == {
        f"tokens_{each}" for each in recipe.sources
    }


def test_a_step_gets_the_corpora_of_the_sources_that_it_reads_with_their_cards() -> None:
    tasks = tasks_of(recipe_of())["tasks"]

    def corpora(name: str) -> dict[str, str]:
        given = tasks[name]["inputs"]
        writers = {
            word: each["taskOutputParameter"]["producerTask"]
            for word, each in given["parameters"].items()
            if word.startswith("corpus")
        }
        cards = {word for word in given["artifacts"] if word.startswith("corpus")}
        assert cards == {f"{word}_artifact" for word in writers}
        assert set(writers.values()) <= set(tasks[name]["dependentTasks"])
        return writers

    # The tokenizer is of the language that is taught, the scores are of all that are known.
    assert corpora("tokenizer") == {"corpus_web": "clean-web", "corpus_law": "clean-law"}
    assert corpora("evaluate") == {f"corpus_{name}": f"clean-{name}" for name in ("web", "law", "en")}


def test_the_pod_of_a_source_has_the_image_of_its_own_engine_and_what_the_stage_asks_for() -> None:
    own = "sources.law.clean={engine: job}"

    dag = tasks_of(recipe_of(own, "cluster.resources={clean: {cpu: 3, memory: 9Gi}}"))

    containers = {name: each["container"] for name, each in dag["executors"].items()}
    assert [containers[f"exec-clean-{name}"]["command"][-1] for name in ("web", "law", "en")] == [
        "anadil.clean", "anadil.launch.clean", "anadil.clean",
    ]  # fmt: skip
    assert "clean-ray" in containers["exec-clean-law"]["image"]
    assert "clean-ray" not in containers["exec-clean-web"]["image"]
    assert containers["exec-clean-en"]["resources"]["resourceCpuRequest"] == "3"


def test_on_a_cluster_no_source_takes_more_processes_than_its_pod_has() -> None:
    recipe = with_clean_workers(recipe_of("sources.law.clean={workers: 6}"))

    workers = {name: source.clean.workers for name, source in recipe.sources.items()}
    assert workers == {"web": 1, "law": 6, "en": 1}
    assert recipe.cluster.resources["clean"].cpu == "6"
    assert recipe.cluster.resources["clean"].memory == "8Gi"


def lines(language: str, name: str, first: int, last: int, path: Path) -> Path:
    with storage.built_in(f"builtin:{language}/{name}").open(encoding="utf-8") as file:
        path.write_text("".join(itertools.islice(file, first, last)), encoding="utf-8")
    return path


@pytest.mark.matrix
def test_a_changed_source_cleans_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    handler = subprocess_task_handler.SubprocessTaskHandler
    monkeypatch.setattr(subprocess_task_handler, "SubprocessTaskHandler", handler)
    monkeypatch.setenv(SPOOL_VARIABLE, "")
    text = tmp_path / "recipe.yaml"
    places = {name: tmp_path / f"{name}.jsonl" for name in ("law", "en")}
    lines("az", "prose.jsonl", 14, 28, places["law"])
    lines("en", "retained.jsonl", 0, 14, places["en"])
    sources = {name: {"inputs": [str(path)]} for name, path in places.items()}
    sources["en"]["language"] = "en"  # type: ignore[assignment]  # the value of another key
    settings = {
        "sources": sources,
        "tracking": {"uri": "off"},
        "base": {"model": "tiny"},
        "tokenizer": {"vocab_sizes": [2048], "strategies": ["extend"]},
        "pretrain": {"phases": [{"trains": "all", "steps": 9, "lr": 1e-3, "mix": dict.fromkeys(places, 1)}]},
    }
    text.write_text(json.dumps(settings), encoding="utf-8")
    command = ["run", str(text), "--work", str(tmp_path / "w"), "--until", "tokenizer", "-o", "json"]

    first = main.main(command)
    made = capfd.readouterr()
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    lines("az", "prose.jsonl", 14, 27, places["law"])
    second = main.main(command)
    again = capfd.readouterr()

    assert first == second == 0, made.err + again.err
    before, after = json.loads(made.out), json.loads(again.out)
    compared = [f"overlap.{name}" for name in places]
    assert list(before) == ["corpus.law", "corpus.en", *compared, "tokenizer"]
    changed = {word for word in before if before[word] != after[word]}
    assert changed == {"corpus.law", *compared, "tokenizer"}
    # They are compared again, and equal lists let what is made of them stay.
    lists = [artifact.finished_manifest(each["overlap.en"], "overlap").digest for each in (before, after)]
    assert lists[0] == lists[1]
    assert f"clean-en: reused {before['corpus.en']}" in again.err
    assert f"clean-law: running because file {places['law']} changed" in again.err
    # The corpus of another source is no reason.
    assert made.err.count("running: nothing to reuse yet") == 5
    origin = artifact.finished_manifest(after["tokenizer"], "tokenizer").origin
    assert {name for name in origin if name.startswith("input ")} == {"input corpus.law"}
    [last, _] = list_runs(tmp_path / "w")
    assert (last.progress, last.artifacts) == ("5 of 5", after)
    steps = {path.stem for path in (tmp_path / "w" / "runs" / last.id).glob("clean*.json")}
    assert steps == {"clean-law", "clean-en"}
