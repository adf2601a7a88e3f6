"""Compiled pipelines: whole for the smallest recipe and for all that a cluster can be asked for, in short for others."""

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from anadil.cli import main
from anadil.recipe.load import shipped
from tests.kit.compact_yaml import compact

FOLDER = Path(__file__).parents[1] / "golden" / "pipelines"
EVERYTHING = (
    "cluster.backend=pytorchjob",
    "cluster.hyperpod=true",
    "cluster.image=registry.example/anadil/{stage}:{version}",
    f"cluster.digests={{tools: sha256:{'ab' * 32}}}",
    "cluster.namespace=hyperpod-ns-team",
    "cluster.queue=hyperpod-ns-team-localqueue",
    "cluster.priority=training-priority",
    "cluster.pull_secrets=[registry, mirror]",
    "cluster.topology=topology.k8s.aws/network-node-layer-3",
    "cluster.notifications=anadil-notifications",
    "cluster.secrets={hub: [HF_TOKEN], tracking: [MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD]}",
    "cluster.volumes=[{claim: fsx, path: /fsx}, {claim: raw, path: /raw, read_only: true}]",
    "cluster.work=/fsx/work",
    "cluster.node_selector={team: language}",
    "cluster.tolerations=[{key: nvidia.com/gpu, effect: NoSchedule}]",
    "cluster.resources={clean: {cpu: 16, memory: 64Gi}, evaluate: {gpus: 2}}",
    "cluster.parallel_sweep=true",
    "tokenizer.trial={steps: 200}",
)
"""Settings over the recipe azerbaijani-1b."""


def compiled(recipe: str, settings: tuple[str, ...] = ()) -> str:
    """What `anadil compile` writes."""
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "pipeline.yaml"
        assert main.main(["compile", recipe, "-f", str(path), *words]) == 0
        return path.read_text(encoding="utf-8")


def summary(pipeline: str) -> str:
    """Of each step of a compiled pipeline: what it waits for, its image, command and resources, its pod."""
    spec, platform = yaml.safe_load_all(pipeline)
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    executors = spec["deploymentSpec"]["executors"]
    steps = {name.removeprefix("exec-"): {**_container(executors[name]), **pods[name]} for name in executors}
    for name, task in _tasks(spec):
        if name.startswith("exit-handler"):
            continue
        wait = {"after": task.get("dependentTasks"), "retry": task.get("retryPolicy")}
        steps[name] = {key: value for key, value in wait.items() if value} | steps.get(name, {})
    first, *others = (steps[name.removeprefix("exec-")] for name in executors)
    alike = {key: value for key, value in first.items() if all(step.get(key) == value for step in others)}
    own = {
        name: {key: value for key, value in step.items() if alike.get(key) != value}
        for name, step in steps.items()
    }
    return compact({"every step": alike, **own})


def _container(executor: dict[str, Any]) -> dict[str, Any]:
    container = executor["container"]
    # Amounts stand there twice: as the user wrote them, and as the number of older servers.
    amounts = {name: each for name, each in container.get("resources", {}).items() if "esource" in name}
    accelerator = container.get("resources", {}).get("accelerator", {})
    variables = {each["name"]: each["value"] for each in container.get("env", ())}
    return {
        "image": container["image"],
        "command": " ".join([*container["command"], *container["args"]]),
        "resources": amounts | {name: each for name, each in accelerator.items() if "esource" in name},
        "env": {name: value for name, value in variables.items() if name != "ANADIL_IMAGE"},
    }


def _tasks(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in [spec["root"], *spec["components"].values()]:
        yield from part.get("dag", {}).get("tasks", {}).items()


def _everything() -> str:
    return compact(*yaml.safe_load_all(compiled("azerbaijani-1b", EVERYTHING)))


def _in_short(recipe: str) -> str:
    return summary(compiled(recipe))


GOLDEN: Mapping[Path, Callable[[], str]] = {
    FOLDER / f"{path.stem}.yaml": partial(_in_short, path.stem) for path in shipped()
} | {
    FOLDER / "smoke.yaml": partial(compiled, "smoke"),
    FOLDER / "everything.yaml": _everything,
}
WHOLE = (FOLDER / "smoke.yaml", FOLDER / "everything.yaml")
