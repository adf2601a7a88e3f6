"""Training jobs as users have them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from anadil.cli import main
from anadil.cli.cluster import launch
from anadil.launch.job import TrainingJob
from anadil.recipe.load import load_recipe

S3 = "s3://my-bucket/anadil"
INPUTS = {
    "pretrain": {"corpus": f"{S3}/corpus/1", "tokenizer": f"{S3}/tokenizer/1"},
    "finetune": {"model": f"{S3}/model/1"},
}
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


def job(recipe: str, *overrides: str, stage: str = "pretrain", run: str = "") -> TrainingJob:
    """A job of a shipped recipe, its artifacts on S3."""
    return TrainingJob(
        stage=stage,
        recipe=load_recipe(recipe, overrides),
        inputs=INPUTS[stage],
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
