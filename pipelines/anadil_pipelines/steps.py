"""Container step of each stage: what it takes, what it gives, how its image is started.

Artifacts travel between steps as URIs, because Kubeflow Pipelines would copy an artifact
whole through each pod's scratch disk, model weights too. Beside each URI goes an artifact of
Kubeflow's own, a card of a few lines, so that its pages know what was made of what. Everything
travels in one JSON document, the executor input, so that a step has the same command in every runner.
"""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from kfp import dsl, kubernetes

from anadil.artifacts.base_model import TINY
from anadil.core.candidates import BY_KIND
from anadil.core.format import GIB, amount
from anadil.core.stages import COMPARED, ENGINE_IMAGES, FLOW, PER_SOURCE, STAGES
from anadil.estimate.instances import CPU, Machine, machine
from anadil.plan.needs import stage_devices
from anadil.preflight.text_size import clean_memory_bytes
from anadil.recipe.clean import Clean
from anadil.recipe.cluster import Resources
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import CHANNELS
from anadil.runtime.flow import RETRAIN, Step, recipe_of_step
from anadil.runtime.job import is_left_out, recipes_of
from anadil.runtime.kfp import DERIVED, STATE, VARIED, parameter_of
from anadil.runtime.lookup import VARIABLE, may_remake

log = logging.getLogger(__name__)

RUN = dsl.PIPELINE_JOB_ID_PLACEHOLDER
"""Id of the run, which the backend fills in: what a step leaves is found by it."""
EXECUTOR_INPUT = dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER
RECIPE: dict[str, Any] = {"recipe": str} | dict.fromkeys(VARIED, str)
NEW = "new"  # Output `state` of a retraining's first step where there is text to learn.
TYPES = dict.fromkeys(PER_SOURCE - COMPARED, dsl.Dataset) | dict.fromkeys(BY_KIND, dsl.Model)
"""Artifact word -> its type in Kubeflow's lineage; any other is a `dsl.Artifact`."""
OF_CHAMPION = {"champion": dsl.Model, "earlier": dsl.Dataset}
"""Cards of a retraining's first step: the champion, and the corpora that it has learnt."""
METRICS = {"metrics": dsl.Output[dsl.Metrics]}
MORE: dict[str, dict[str, Any]] = {
    # The step waits for the pods of a parallel sweep; what they made is found by its content.
    "tokenizer": {"candidates": list[str]},
    # For Kubeflow's pages.
    "report": {"html": dsl.Output[dsl.HTML], "markdown": dsl.Output[dsl.Markdown]},
}
"""Stage -> parameters of its step beside what the table of stages says."""
GPU = "nvidia.com/gpu"
USER = 10_001  # User and group of every image.
HOME = "/home/anadil"
SHARED_MEMORY = "8Gi"
"""Size of /dev/shm, with GPUs: NCCL and loaders need more than the runtime's 64 MiB; it counts as memory."""
SHARE = 0.85  # Share of its GPUs' part of the machine; AWS's tools leave 87 to 94 % of a machine to pods.
BACKOFF_CAP = "31536000s"
"""A year. Argo counts this time from the first attempt's start, ends the retried pod when it is over, and
kfp writes one hour where nothing is said: a training of two hours would not be tried again."""
NO_EVICTION = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that keep the autoscalers from moving a pod; Argo does not retry a pod that was deleted."""
EXACT = re.compile(r"@sha256:[0-9a-f]{64}$|:v?\d+\.\d+\.\d+([-.+_][\w.+-]*)?$")
"""An image by digest, or by a tag that names one version."""
LAUNCHER_RETRIES = 3  # A new launcher adopts the running job.


def _step(name: str, parameters: dict[str, Any], image: str, *command: str, reads: Sequence[str] = ()) -> Any:
    """Return a component of kfp, which reads the name and the signature of a function and calls it once."""
    types = TYPES | OF_CHAMPION
    cards = {card(word): dsl.Input[types.get(word.partition("_")[0], dsl.Artifact)] for word in reads}
    parameters = parameters | cards
    # A stage may have been left out, and a pipeline's caller may vary nothing.
    defaults = dict.fromkeys(VARIED, "") | dict.fromkeys(cards)

    def function(*_: Any) -> dsl.ContainerSpec:
        # `resources` sets the image itself from the recipe.
        return dsl.ContainerSpec(
            image=f"anadil/{image}",
            command=["python", "-m", *command],
            args=["--executor-input", EXECUTOR_INPUT],
        )

    function.__name__ = name
    give_signature(function, parameters, defaults)
    return dsl.container_component(function)


def give_signature(function: Any, parameters: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Give a function the parameters that kfp is to read: name -> annotation, and the defaults of some."""
    only = Parameter.KEYWORD_ONLY
    function.__signature__ = Signature(
        [
            Parameter(key, only, annotation=kind, default=defaults.get(key, Parameter.empty))
            for key, kind in parameters.items()
        ]
    )


def card(word: str) -> str:
    """Return the name of an artifact's card in Kubeflow's lineage."""
    return f"{word}_artifact"


def _outputs(word: str) -> dict[str, Any]:
    return {word: dsl.OutputPath(str), card(word): dsl.Output[TYPES.get(word, dsl.Artifact)]} | METRICS


def component(step: Step, recipe: Recipe, of_champion: Sequence[str] = (), *, launched: bool = False) -> Any:
    """Return the component of a step of a run, by the whole recipe; `of_champion` are the cards that it takes.

    A launched one starts the stage as a job of its own and follows it.
    """
    stage = step.stage
    words = [parameter_of(word) for word in step.reads_in_run(recipe)]
    parameters = RECIPE | {"run": str} | dict.fromkeys(words, str)
    parameters |= ({"source": str} if step.source else {}) | _outputs(stage.writes) | MORE.get(stage.name, {})
    parameters |= {stage.pod.parts.one: str, stage.pod.parts.made: list[str]} if stage.pod.parts else {}
    words += of_champion
    if launched:
        return _step(step.name, parameters, "tools", "anadil.launch", stage.name, reads=words)
    # The words are those of the whole recipe, the engine may be the source's own.
    own_recipe, _ = recipe_of_step(stage, recipe, step.source)
    if stage.name == "clean" and own_recipe.clean.engine in ENGINE_IMAGES:
        # Its engine runs pods, which the stage by itself does not know.
        return _step(step.name, parameters, "clean-ray", "anadil.launch.clean", reads=words)
    return _step(step.name, parameters, stage.name, f"anadil.{stage.name}", reads=words)


def candidate(recipe: Recipe) -> Any:
    """Return the component that trains the tokenizers of one vocabulary size."""
    words = [parameter_of(word) for word in Step(stage=STAGES["tokenizer"]).reads(recipe)]
    # No `run`: how it ended is for the step `tokenizer` to tell, which uses what it made.
    parameters = RECIPE | dict.fromkeys(words, str) | {"size": str} | _outputs("tokenizer")
    return _step("candidate", parameters, "tokenizer", "anadil.tokenizer")


def read_of_champion(step: Step) -> list[str]:
    """Return those of `OF_CHAMPION` that a step of a retraining reads, so that the lineage leads to the champion."""
    stage = step.stage
    reads = {
        "champion": stage.champion.model or stage.name in ("pretrain", "release"),
        "earlier": stage.extends.key == STAGES["clean"].extends.key or "corpus" in stage.champion.artifacts,
    }
    return [word for word, is_read in reads.items() if is_read]


retrain = _step(
    RETRAIN,
    RECIPE | {"run": str, DERIVED: dsl.OutputPath(str), STATE: dsl.OutputPath(str)}
    | {card(word): dsl.Output[kind] for word, kind in OF_CHAMPION.items()} | METRICS,
    "tools", "anadil.launch", RETRAIN,
)  # fmt: skip
"""First step of a retraining: it asks the registry for the champion, and writes the recipe of the others."""
finish = _step("finish", RECIPE | {"run": str}, "tools", "anadil.launch", "finish")
"""Exit handler: stops what a run has left behind and tells how it ended."""
finish_retraining = _step("finish", RECIPE | {"run": str, "first": str}, "tools", "anadil.launch", "finish")
"""The same after a retraining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequests:
    """Requests of a pod; memory is request and limit, so that a pod fails by its own need only."""

    cpu: str
    memory: str
    gpus: int = 0
    cpu_limit: str | None = None  # Left out, none: a stage may use what its node has to spare.


LIGHT = PodRequests(cpu="100m", memory="512Mi", cpu_limit="1")
"""A launcher or the exit handler: Python, one open connection, at most 200 kept log lines a pod."""
SMALL = PodRequests(cpu="500m", memory="4Gi")
"""A stage of the tiny base, so that the recipe `smoke` fits a cluster on a laptop."""


def configure_task(task: Any, stage: str, recipe: Recipe, *, takes: bool = False) -> None:
    """Set all that the pod of a stage gets, the stage itself, its launcher, or one that takes the champion's artifact."""
    launched = is_launched(stage, recipe)
    image = recipe.image_of("launch" if launched else stage)
    needs = LIGHT if launched or takes else pod_requests(stage, recipe)
    _configure_pod(task, stage, image, needs, recipe)
    if launched:
        _configure_watcher(task, recipe)
        _avoid_gpu_nodes(task, recipe)
        retries = LAUNCHER_RETRIES
    else:
        own_retries = STAGES[stage].pod.retries
        retries = recipe.cluster.restarts if own_retries is None else own_retries
        if STAGES[stage].pod.uses_model:
            _prevent_eviction(task)
        if recipe.cluster.work:
            task.set_env_variable("ANADIL_WORK", recipe.cluster.work)
        if stage == "clean" and recipe.clean.engine != "processes":
            _prevent_eviction(task)  # its pods would go with it
        if stage == "release":
            _give_alerts(task, recipe)
    if STAGES[stage].costly and may_remake():
        task.set_env_variable(VARIABLE, "1")
    if needs.gpus:
        task.set_accelerator_type(GPU).set_accelerator_limit(needs.gpus)
        kubernetes.empty_dir_mount(
            task, volume_name="shm", mount_path="/dev/shm", medium="Memory", size_limit=SHARED_MEMORY  # noqa: S108  its own
        )  # fmt: skip
        if recipe.cluster.hyperpod:
            kubernetes.add_node_selector(task, "sagemaker.amazonaws.com/node-health-status", "Schedulable")
        for label, value in recipe.cluster.node_selector.items():
            kubernetes.add_node_selector(task, label, value)
        for taint in recipe.cluster.tolerations:
            kubernetes.add_toleration(
                task, key=taint.key, operator=taint.operator, value=taint.value, effect=taint.effect
            )
    _set_retry(task, retries, "60s" if needs.gpus else "30s")


def _set_retry(task: Any, retries: int | None, backoff: str) -> None:
    task.set_retry(retries, backoff_duration=backoff, backoff_factor=2.0, backoff_max_duration=BACKOFF_CAP)


def configure_first_step(task: Any, recipe: Recipe) -> None:
    """Set all that the pod gets that begins a retraining: as much as the step that ends it."""
    needs = pod_requests("release", recipe)
    _configure_pod(task, RETRAIN, recipe.image_of("launch"), needs, recipe)
    _set_retry(task, STAGES["release"].pod.retries, "30s")


def configure_exit_handler(task: Any, recipe: Recipe) -> None:
    """Set all that the pod of the exit handler gets; it is not tried again, so that nobody is told twice."""
    _configure_pod(task, "finish", recipe.image_of("launch"), LIGHT, recipe)
    _configure_watcher(task, recipe)
    _avoid_gpu_nodes(task, recipe)


def is_launched(stage: str, recipe: Recipe) -> bool:
    """True if a stage runs as a job of its own on the cluster."""
    return STAGES[stage].training is not None and recipe.cluster.backend != "local"


def pod_requests(stage: str, recipe: Recipe) -> PodRequests:
    """Return the requests of a stage's pod: the recipe's wish, else its part of the machine, else the table."""
    requested = recipe.cluster.resources.get(stage, Resources())
    kind = _machine(recipe.cluster.instance)
    gpus = requested.gpus
    if gpus is None:
        # GPUs of one node: a pod has no other.
        gpus = stage_devices(stage, recipe, kind, 1)[1] if kind else 0
    if gpus and kind is not None and kind.device != CPU:
        share = SHARE * min(1.0, gpus / kind.devices)
        memory = f"{int(kind.ram_bytes * share / GIB)}Gi"
        default = PodRequests(cpu=str(int(kind.vcpus * share)), memory=memory)
    elif recipe.base.model == TINY:
        default = SMALL
    else:
        default = PodRequests(cpu=STAGES[stage].pod.cpu, memory=STAGES[stage].pod.memory)
    return PodRequests(cpu=requested.cpu or default.cpu, memory=requested.memory or default.memory, gpus=gpus)


def with_clean_workers(recipe: Recipe) -> Recipe:
    """Set the processes of `clean` to the CPUs of its pod, with the memory that they need.

    The pod sees all CPUs of its node, and would start a process on each. Where the processes run in other pods
    (`clean.engine`), this one only drives them.
    """
    asked, cpu = recipe.cluster.resources.get("clean", Resources()), pod_requests("clean", recipe).cpu
    default = max(1, int(amount(cpu)))
    cleans = [part.clean for part in recipes_of(STAGES["clean"], recipe)]
    in_pod = [clean.workers or default for clean in cleans if clean.engine == "processes"]
    if not in_pod or any(clean.workers for clean in cleans):
        # The pods of all sources are alike, so they have what the largest needs.
        cpu = asked.cpu or str(max(in_pod, default=1))
    memory = asked.memory or f"{math.ceil(clean_memory_bytes(max(in_pod, default=0)) / GIB)}Gi"
    resources = {**recipe.cluster.resources, "clean": asked.model_copy(update={"cpu": cpu, "memory": memory})}
    cluster = recipe.cluster.model_copy(update={"resources": resources})

    def with_workers(clean: Clean) -> Clean:
        workers = clean.workers or (default if clean.engine == "processes" else None)
        return clean.model_copy(update={"workers": workers})

    sources = {
        name: source.model_copy(update={"clean": with_workers(source.clean)})
        for name, source in recipe.sources.items()
    }
    update = {"cluster": cluster, "clean": with_workers(recipe.clean), "sources": sources}
    return recipe.model_copy(update=update)


def warn_about(recipe: Recipe) -> None:
    """Warn of what a cluster does otherwise than people may think."""
    names = [stage.name for stage in FLOW if not is_left_out(stage, recipe)]
    images = {part.image_of(name) for name in names for part in recipes_of(STAGES[name], recipe)}
    if any(is_launched(name, recipe) for name in names):
        images.add(recipe.image_of("launch"))
    if loose := sorted(image for image in images if not is_exact(image)):
        log.warning(
            "%s: named neither by digest nor by an exact version, so two runs may differ; set cluster.digests",
            ", ".join(loose),
        )
    if recipe.cluster.backend == "local" and recipe.cluster.nodes > 1:
        log.warning(
            "cluster.backend is local, so pretrain runs in one pod and takes 1 of the %d cluster.nodes; "
            "set cluster.backend to pytorchjob",
            recipe.cluster.nodes,
        )


def is_exact(image: str) -> bool:
    """True if an image's name means the same bytes tomorrow, as far as a name can tell."""
    return EXACT.search(image) is not None


@cache
def _machine(name: str | None) -> Machine | None:
    return machine(name) if name else None


def _configure_pod(task: Any, stage: str, image: str, needs: PodRequests, recipe: Recipe) -> None:
    # A stage finds its finished artifact by content; Kubeflow's cache compares the image's name and the
    # parameters, not at the data behind a URI, nor at whether the cached artifact is still there.
    task.set_caching_options(enable_caching=False)
    task.set_display_name(stage)
    task.set_container_image(image)
    task.set_env_variable("ANADIL_IMAGE", image)
    task.set_cpu_request(needs.cpu)
    if needs.cpu_limit:
        task.set_cpu_limit(needs.cpu_limit)
    task.set_memory_request(needs.memory)
    task.set_memory_limit(needs.memory)
    if recipe.cluster.pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(recipe.cluster.pull_secrets))
    kubernetes.set_image_pull_policy(task, "IfNotPresent" if is_exact(image) else "Always")
    kubernetes.set_security_context(task, run_as_user=USER, run_as_group=USER, run_as_non_root=True)
    for name, path in (("tmp", "/tmp"), ("home", HOME)):  # noqa: S108  the container's own
        kubernetes.empty_dir_mount(task, volume_name=name, mount_path=path)
    for name, value in (("name", "anadil"), ("component", stage), ("managed-by", "kubeflow-pipelines")):
        kubernetes.add_pod_label(task, f"app.kubernetes.io/{name}", value)
    for secret, keys in recipe.cluster.secrets.items():
        kubernetes.use_secret_as_env(task, secret, {key: key for key in keys})
    for volume in recipe.cluster.volumes:
        # kfp mounts no claim read-only; what `read_only` says is for training jobs.
        kubernetes.mount_pvc(task, pvc_name=volume.claim, mount_path=volume.path)


def _configure_watcher(task: Any, recipe: Recipe) -> None:
    """Set what pods get that watch over others: alerts, and no eviction by autoscalers."""
    _give_alerts(task, recipe)
    _prevent_eviction(task)


def _give_alerts(task: Any, recipe: Recipe) -> None:
    if recipe.cluster.notifications:
        variables = {channel.variable: channel.variable for channel in CHANNELS}
        kubernetes.use_secret_as_env(task, recipe.cluster.notifications, variables, optional=True)


def _prevent_eviction(task: Any) -> None:
    for key, value in NO_EVICTION.items():
        kubernetes.add_pod_annotation(task, key, value)


def _avoid_gpu_nodes(task: Any, recipe: Recipe) -> None:
    """Set the pod apart from GPU nodes: a launcher lives as long as its job, and would keep such a node alive."""
    terms: list[dict[str, Any]] = [{"key": f"{GPU}.present", "operator": "DoesNotExist"}]
    kind = _machine(recipe.cluster.instance)
    if kind is not None and kind.device != CPU:
        names = [kind.name, f"ml.{kind.name}"]
        terms.append({"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": names})
    kubernetes.add_node_affinity(task, match_expressions=terms)
