import logging
from typing import Any

import pytest
import yaml

from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil_pipelines.adapt import pipeline_yaml
from anadil_pipelines.steps import PodRequests, is_exact, pod_requests, warn_about, with_clean_workers
from tests.kit.one_text import ONE_TEXT

from .golden import WHOLE, compiled


@pytest.fixture(scope="module")
def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    spec, platform = yaml.safe_load_all(compiled(*WHOLE["everything"]))
    return spec, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


@pytest.fixture(scope="module")
def containers(documents: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    executors = documents[0]["deploymentSpec"]["executors"]
    return {name.removeprefix("exec-"): each["container"] for name, each in executors.items()}


@pytest.fixture(scope="module")
def tasks(documents: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    spec = documents[0]
    dags = [spec["root"], *(each for each in spec["components"].values() if "dag" in each)]
    return {name: task for dag in dags for name, task in dag["dag"]["tasks"].items()}


def recipe_with(*settings: str) -> Recipe:
    return load_recipe("azerbaijani-1b", [ONE_TEXT, *settings])


# The golden pipeline `everything` holds the rest of each pod: secrets, claims, user, retries.


def test_every_step_asks_for_cpu_and_memory_and_fails_by_its_own_need_only(
    containers: dict[str, Any],
) -> None:
    for name, container in containers.items():
        asked = container["resources"]
        assert asked["resourceCpuRequest"], name
        assert asked["resourceMemoryRequest"] == asked["resourceMemoryLimit"], name


def test_nothing_is_cached_by_its_names(tasks: dict[str, Any]) -> None:
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in tasks.values())


@pytest.mark.parametrize(
    ("stage", "settings", "expected"),
    [
        ("evaluate", [], PodRequests(cpu="10", memory="122Gi", gpus=1)),
        ("pretrain", [], PodRequests(cpu="81", memory="979Gi", gpus=8)),
        (
            "finetune",
            ["cluster.resources={finetune: {gpus: 4}}"],
            PodRequests(cpu="40", memory="489Gi", gpus=4),
        ),
        ("clean", [], PodRequests(cpu="4", memory="6Gi")),
        ("evaluate", ["cluster.instance=null"], PodRequests(cpu="4", memory="16Gi")),
        ("clean", ["base.model=tiny"], PodRequests(cpu="500m", memory="4Gi")),
        (
            "evaluate",
            ["cluster.instance=null", "cluster.resources={evaluate: {gpus: 1, memory: 32Gi}}"],
            PodRequests(cpu="4", memory="32Gi", gpus=1),
        ),
    ],
)
def test_a_step_with_gpus_asks_for_their_part_of_the_machine(
    stage: str, settings: list[str], expected: PodRequests
) -> None:
    assert pod_requests(stage, recipe_with("cluster.backend=local", *settings)) == expected


@pytest.mark.parametrize(
    ("settings", "workers", "expected"),
    [
        ([], 4, PodRequests(cpu="4", memory="6Gi")),
        (["clean.workers=16"], 16, PodRequests(cpu="16", memory="18Gi")),
        (["cluster.resources={clean: {cpu: 8}}"], 8, PodRequests(cpu="8", memory="10Gi")),
        (["cluster.resources={clean: {cpu: 500m}}"], 1, PodRequests(cpu="500m", memory="3Gi")),
        (["cluster.resources={clean: {memory: 3Gi}}"], 4, PodRequests(cpu="4", memory="3Gi")),
        (["clean.engine=job", "clean.workers=200"], 200, PodRequests(cpu="1", memory="2Gi")),
        (["clean.engine=ray"], None, PodRequests(cpu="1", memory="2Gi")),
    ],
)
def test_clean_has_a_process_for_each_cpu_that_its_pod_asks_for(
    settings: list[str], workers: int | None, expected: PodRequests
) -> None:
    recipe = with_clean_workers(recipe_with(*settings))

    assert recipe.clean.workers == workers
    assert pod_requests("clean", recipe) == expected


@pytest.mark.parametrize(
    ("image", "exact"),
    [
        ("anadil/clean:0.1.0", True),
        ("registry.example:5000/anadil/clean:v1.2.3-cuda", True),
        (f"anadil/clean@sha256:{'0' * 64}", True),
        ("anadil/clean:latest", False),
        ("anadil/clean:1", False),
        ("registry.example:5000/anadil/clean", False),
    ],
)
def test_an_exact_image_is_one_by_digest_or_full_version(image: str, exact: bool) -> None:
    assert is_exact(image) is exact


def test_a_loose_image_is_warned_about_and_pulled_each_time(caplog: pytest.LogCaptureFixture) -> None:
    recipe = recipe_with(
        "cluster.image=registry.example/{stage}:latest", f"cluster.digests={{clean: sha256:{'0' * 64}}}"
    )

    text = pipeline_yaml(recipe)

    pods = list(yaml.safe_load_all(text))[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert (
        "registry.example/tokenizer:latest, registry.example/tools:latest: named neither by digest"
        in caplog.text
    )
    assert "registry.example/clean" not in caplog.text
    assert pods["exec-tokenizer"]["imagePullPolicy"] == "Always"
    assert pods["exec-clean"]["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize("engine", ["ray", "job"])
def test_the_step_that_drives_pods_runs_in_the_image_that_holds_what_it_drives_them_with(engine: str) -> None:
    recipe = recipe_with(
        f"clean.engine={engine}", "cluster.volumes=[{claim: shared, path: /data}]", "cluster.work=/data/work"
    )

    executors = next(iter(yaml.safe_load_all(pipeline_yaml(recipe))))["deploymentSpec"]["executors"]

    assert executors["exec-clean"]["container"]["image"].startswith("anadil/clean-ray:")
    assert executors["exec-clean"]["container"]["command"] == ["python", "-m", "anadil.launch.clean"]
    assert executors["exec-tokenizer"]["container"]["image"].startswith("anadil/tokenizer:")


def test_a_pod_is_one_machine_however_many_the_recipe_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_about(recipe_with("cluster.backend=local"))

    assert "takes 1 of the 2 cluster.nodes; set cluster.backend to pytorchjob" in caplog.text
