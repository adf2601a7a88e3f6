"""Training jobs as users have them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from anadil.cli import main
from anadil.cli.cluster import launch
from anadil.launch.job import TrainingJob
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe

S3 = "s3://my-bucket/anadil"
WRITES = {"pretrain": "model", "finetune": "adapter"}
HYPERPOD = (
    "cluster.hyperpod=true",
    "cluster.namespace=hyperpod-ns-language",
    "cluster.queue=hyperpod-ns-language-localqueue",
    "cluster.priority=training-priority",
    "cluster.topology=topology.k8s.aws/network-node-layer-3",
    "cluster.pull_secrets=[registry]",
    "cluster.volumes=[{claim: fsx, path: /fsx}]",
    "cluster.work=/fsx/anadil-work",
    "cluster.service_account=anadil-training",
    "cluster.secrets={hub: [HF_TOKEN]}",
    "cluster.deadline_hours=72",
)


def inputs_of(stage: str, recipe: Recipe, root: str) -> dict[str, str]:
    """Inputs of a stage as the DAG gives them: tokens of each source."""
    if stage == "finetune":
        return {"model": f"{root}/model/1"}
    tokens = {f"tokens.{name}": f"{root}/tokens/{name}" for name in recipe.sources}
    return {**(tokens or {"tokens": f"{root}/tokens/1"}), "tokenizer": f"{root}/tokenizer/1"}


def job(recipe: str, *overrides: str, stage: str = "pretrain", run: str = "") -> TrainingJob:
    """A job of a shipped recipe, its artifacts on S3."""
    settings = load_recipe(recipe, overrides)
    return TrainingJob(
        stage=stage,
        recipe=settings,
        inputs=inputs_of(stage, settings, S3),
        target=f"{S3}/{WRITES[stage]}/2",
        run=run,
    )


def container(template: Mapping[str, Any]) -> Any:
    """The one container of a pod template."""
    (only,) = template["spec"]["containers"]
    return only


def environment(template: Mapping[str, Any]) -> dict[str, str]:
    """Variables with a plain value."""
    return {each["name"]: each["value"] for each in container(template)["env"] if "value" in each}


def worker(manifest: Mapping[str, Any]) -> Any:
    """The pod template of a PyTorchJob."""
    return manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]


def launch_options(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> Any:
    """What `anadil launch` reads from a command line; nothing is launched."""
    asked: list[Any] = []

    def note(options: Any) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr(launch, "_launch", note)
    assert main.main(arguments) == 0
    [options] = asked
    return options
