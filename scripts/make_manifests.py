"""Write the PyTorchJobs in manifests/ as the launcher renders them, and the stages that the chart knows.

    python scripts/make_manifests.py [--check]

A launched job carries its whole recipe and is called after its artifact. Here the recipe is a file
that people edit (ConfigMap `anadil-recipe`), and jobs are called `anadil-<stage>`.
"""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from anadil.core.stages import LAUNCHABLE, STAGES
from anadil.launch.job import SPEC_ANNOTATION, TrainingJob
from anadil.launch.kubernetes import manifests
from anadil.launch.kubernetes.clean_pods import CleanPods, ray_cluster
from anadil.recipe.load import load_recipe, recipes_dir
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import Step, flow_of, options_of
from generate import write_or_check

MANIFESTS = Path(__file__).parents[1] / "manifests"
CHART_STAGES = MANIFESTS.parent / "charts" / "anadil" / "files" / "stages.yaml"
"""Facts that the chart needs of the stages that it can launch."""
BASE_RECIPE = MANIFESTS / "base" / "recipe.yaml"
MOUNT = "/etc/anadil"
PLACE = "/data/run"
"""Where the artifacts lie: not below `storage.root`, whose directories are called by content."""
NOTE = "# Written by scripts/make_manifests.py, as `anadil launch` renders it. Change it in an overlay.\n"
CLUSTER = """\
storage:
  root: /data/anadil
cluster:
  backend: pytorchjob
  service_account: anadil-stage
  volumes:
    - {claim: anadil-storage, path: /data}
  resources:   # for a laptop; the stages of a real run need what `anadil plan` says
    pretrain: {cpu: 200m, memory: 1536Mi}
    finetune: {cpu: 200m, memory: 1536Mi}
"""


class Dumper(yaml.SafeDumper):
    """Lists indented under their key, as people write them, and nothing by reference."""

    def increase_indent(self, flow: bool = False, *_: bool, **__: bool) -> None:
        """Indent lists too."""
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # the base class names it
        """Write equal parts out each time."""
        return True


def inputs_of(step: Step, recipe: Recipe) -> dict[str, str]:
    """Places of the artifacts that a step reads in a run of this recipe."""
    made = {each.writes for each in flow_of(recipe)}
    words = step.reads_in_run(recipe).items()
    return {word: _place(of_run) for word, of_run in words if of_run in made}


def _place(word: str) -> str:
    return f"{PLACE}/{word.replace('.', '/')}"


RAY_WORKERS = 2
PREPARE_RESOURCES = {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


def recipe_text() -> str:
    """The recipe `smoke`, on the claim of the cluster."""
    smoke = (recipes_dir() / "smoke.yaml").read_text(encoding="utf-8")
    return smoke.rstrip("\n") + "\n" + CLUSTER


def rendered(stage: str, recipe: Recipe) -> dict[str, Any]:
    """The launcher's job, with a plain name and its recipe from the ConfigMap."""
    step = Step(stage=STAGES[stage])
    job = TrainingJob(stage=stage, recipe=recipe, inputs=inputs_of(step, recipe), target=_place(step.writes))
    text = json.dumps(manifests.render_pytorchjob(job)).replace(job.name, f"anadil-{stage}")
    manifest: dict[str, Any] = json.loads(text)
    annotations = manifest["metadata"]["annotations"]
    del annotations[SPEC_ANNOTATION]  # by which launchers know the jobs that they made
    pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    [container] = pod["containers"]
    container["args"][container["args"].index("--recipe") + 1] = f"{MOUNT}/recipe.yaml"
    container["volumeMounts"].append({"name": "recipe", "mountPath": MOUNT, "readOnly": True})
    pod["volumes"].append({"name": "recipe", "configMap": {"name": "anadil-recipe"}})
    return manifest


def init_container(step: Step, recipe: Recipe) -> dict[str, Any]:
    """A step as an init container beside the training container, with its settings."""
    manifest = rendered("pretrain", recipe)
    pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    container: dict[str, Any] = copy.deepcopy(pod["containers"][0])
    stage = step.stage.name
    image = recipe.image_of(stage)
    options = [*(["--source", step.source] if step.source else []), *options_of(inputs_of(step, recipe))]
    container |= {
        "name": step.name,
        "image": image,
        # As the laptop's training container: images that were loaded into the node are taken as they are.
        "imagePullPolicy": "IfNotPresent",
        "args": ["--recipe", f"{MOUNT}/recipe.yaml", *options, "--out", _place(step.writes)],
        "resources": PREPARE_RESOURCES,
    }
    del container["ports"]
    if STAGES[stage].pod.image != stage:
        # Its image starts the stage whose name it has.
        container["command"] = ["python", "-m", f"anadil.{stage}"]
    for variable in container["env"]:
        if variable["name"] == "ANADIL_IMAGE":
            variable["value"] = image
    container["env"] = [each for each in container["env"] if each["name"] != "ANADIL_METRICS_PORT"]
    return container


def _job(stage: str) -> str:
    return _yaml(rendered(stage, load_recipe(str(BASE_RECIPE))))


def _prepare() -> str:
    recipe = load_recipe(str(BASE_RECIPE))
    where = "/spec/pytorchReplicaSpecs/Worker/template/spec/initContainers"
    # The laptop runs all steps before training in the training pod.
    made = [init_container(step, recipe) for step in flow_of(recipe, "pretrain")[:-1]]
    return _yaml([{"op": "add", "path": where, "value": made}])


def _ray_cluster() -> str:
    """Job that `clean` makes with `clean.engine: ray`, with a plain name and two workers."""
    pods = CleanPods(
        recipe=load_recipe(str(BASE_RECIPE), ["cluster.work=/data/work", "clean.engine=ray"]),
        name="anadil-ray",
    )
    return _yaml(ray_cluster(pods, RAY_WORKERS), NOTE.replace("anadil launch", "anadil clean"))


def _chart_stages() -> str:
    note = "# Written by scripts/make_manifests.py: each stage that can be a job of its own, and what it needs and takes.\n"
    stages = {}
    for name in LAUNCHABLE:
        stage = STAGES[name]
        # Pieces are made by the job itself where it gets none.
        takes = {each.kind for each in stage.reads if each.optional or each.how != "files"}
        # The model to begin with is named by one option, merged or not.
        needs = {*stage.words} - takes - {*[each.kind for each in stage.reads if each.either][:-1]}
        stages[name] = {"needs": sorted(needs), "takes": sorted(takes)}
    return _yaml(stages, note)


def _yaml(data: object, note: str = NOTE) -> str:
    return note + yaml.dump(data, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


GOLDEN: dict[Path, Callable[[], str]] = {
    BASE_RECIPE: recipe_text,
    MANIFESTS / "base" / "pretrain.yaml": lambda: _job("pretrain"),
    MANIFESTS / "components" / "finetune" / "finetune.yaml": lambda: _job("finetune"),
    MANIFESTS / "overlays" / "laptop" / "prepare.yaml": _prepare,
    MANIFESTS / "components" / "ray" / "raycluster.yaml": _ray_cluster,
    CHART_STAGES: _chart_stages,
}
"""File -> its text, in the order in which they depend on each other."""


if __name__ == "__main__":
    sys.exit(write_or_check(GOLDEN))
