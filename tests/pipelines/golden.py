"""Compiled pipelines in short: of each step its edges, arguments, image, command, resources and pod."""

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from anadil.cli import main
from tests.kit.compact_yaml import compact
from tests.kit.one_text import ONE_TEXT

FOLDER = Path(__file__).parents[1] / "golden" / "pipelines"
EVERYTHING = (
    ONE_TEXT,
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
    "merge={base_share: 0.25}",
)
"""Settings over the recipe azerbaijani-1b."""
POLICIES = {
    "dependentTasks": "after",
    "retryPolicy": "retry",
    "triggerPolicy": "trigger",
    "iteratorPolicy": "loop",
    "parameterIterator": "over",
}
"""Keys of a task, and the names that a summary gives them."""
WHOLE: Mapping[str, tuple[str, ...]] = {
    "smoke": ("smoke",),
    "everything": ("azerbaijani-1b", *EVERYTHING),
    "retrain": ("azerbaijani-1b", *EVERYTHING, "--retrain"),
}
"""Pipelines that the server's own schema reads: the smallest, and those with all that a cluster can be asked for."""


@cache
def compiled(recipe: str, *settings: str) -> str:
    """Return the text that `anadil compile` writes, for values of keys and options."""
    words = [word for each in settings for word in ([each] if each.startswith("--") else ["--set", each])]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "pipeline.yaml"
        assert main.main(["compile", recipe, "-f", str(path), *words]) == 0
        return path.read_text(encoding="utf-8")


def summary(pipeline: str) -> str:
    """Each step of a compiled pipeline: what it waits for, its arguments, image, command and resources, its pod."""
    spec, platform = yaml.safe_load_all(pipeline)
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    executors = spec["deploymentSpec"]["executors"]
    steps = {
        name.removeprefix("exec-"): {**_container(executors[name]), **_pod(pods[name])} for name in executors
    }
    arguments = {}
    for name, task in _tasks(spec):
        if name.startswith("exit-handler"):
            continue
        given = task["inputs"].get("parameters", {}) | task["inputs"].get("artifacts", {})
        arguments[name] = {_source({"": argument}): _source(each) for argument, each in given.items()}
        policies = {POLICIES[key]: task[key] for key in POLICIES if key in task}
        steps[name] = policies | steps.get(name, {})
    ran = [name.removeprefix("exec-") for name in executors]
    alike = _alike([steps[name] for name in ran])
    alike["arguments"] = _alike([arguments[name] for name in ran])
    own = {
        name: _without(alike, step) | ({"arguments": own} if own else {})
        for name, step in steps.items()
        for own in [_without(alike["arguments"], arguments[name])]
    }
    return compact({"every step": alike, **own})


def _alike(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the items that all of them have."""
    first, *others = several
    return {key: value for key, value in first.items() if all(each.get(key) == value for each in others)}


def _without(alike: dict[str, Any], items: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in items.items() if alike.get(key) != value}


def _source(given: dict[str, Any]) -> Any:
    """Return the input, the constant or the output of a task that an argument is."""
    [value] = given.values()
    if isinstance(value, dict):
        output = value.get("outputParameterKey") or value.get("outputArtifactKey") or value["constant"]
        value = f"{value['producerTask']}.{output}" if "producerTask" in value else output
    return value.replace("pipelinechannel--", "") if isinstance(value, str) else value


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


def _pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a pod, with a line for each secret that its environment holds."""
    secrets = {
        each["secretNameParameter"]["runtimeValue"]["constant"] + "?" * each["optional"]: [
            key["envVar"] if key["envVar"] == key["secretKey"] else f"{key['envVar']}={key['secretKey']}"
            for key in each["keyToEnv"]
        ]
        for each in pod.get("secretAsEnv", ())
    }
    rest = {key: value for key, value in pod.items() if key != "secretAsEnv"}
    return rest | {"secrets": secrets} if secrets else rest


def _tasks(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in [spec["root"], *spec["components"].values()]:
        yield from part.get("dag", {}).get("tasks", {}).items()


def _in_short(recipe: str, *settings: str) -> str:
    return summary(compiled(recipe, *settings))


GOLDEN: Mapping[Path, Callable[[], str]] = {
    FOLDER / f"{name}.yaml": partial(_in_short, name) for name in ("azerbaijani-1b", "japanese-70b", "own")
} | {FOLDER / f"{name}.yaml": partial(_in_short, *arguments) for name, arguments in WHOLE.items()}
