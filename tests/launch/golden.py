"""Manifests of jobs as users have them, which `make golden` rewrites."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from anadil.launch.job import TrainingJob
from anadil.launch.kubernetes import manifests as pod
from tests.kit.compact_yaml import compact
from tests.kit.jobs import HYPERPOD, inputs_of, job

FOLDER = Path(__file__).parents[1] / "golden" / "launch"
ON_A_VOLUME = ("cluster.volumes=[{claim: anadil-data, path: /data}]",)


def cpu(*overrides: str) -> TrainingJob:
    """The recipe `smoke` with all its artifacts on one volume."""
    recipe = job("smoke", *ON_A_VOLUME, *overrides).recipe
    return TrainingJob(
        stage="pretrain", recipe=recipe, inputs=inputs_of("pretrain", recipe, "/data"), target="/data/model/2"
    )


def japanese() -> TrainingJob:
    """32 machines whose GPUs talk over EFA."""
    return job("japanese-70b", *ON_A_VOLUME, "cluster.work=/data/work", run="run-20")


def hyperpod() -> TrainingJob:
    """Two machines of HyperPod, a queue of its task governance, FSx for Lustre."""
    return job("azerbaijani-1b", *HYPERPOD)


MANIFESTS: dict[str, Callable[[], dict[str, Any]]] = {
    "cpu-one-node": lambda: pod.render_pytorchjob(cpu()),
    "azerbaijani-1b-hyperpod": lambda: pod.render_pytorchjob(hyperpod()),
    "japanese-70b-efa": lambda: pod.render_pytorchjob(japanese()),
    "finetune-one-gpu": lambda: pod.render_pytorchjob(
        job("azerbaijani-1b", *ON_A_VOLUME, "cluster.work=/data/work", stage="finetune")
    ),
    "azerbaijani-1b-trainjob": lambda: pod.render_trainjob(
        job(
            "azerbaijani-1b",
            *ON_A_VOLUME,
            "cluster.work=/data/work",
            "cluster.deadline_hours=72",
            "cluster.pull_secrets=[registry]",
        )
    ),
}


def text(name: str) -> str:
    return compact(MANIFESTS[name]())


GOLDEN: dict[Path, Callable[[], str]] = {FOLDER / f"{name}.yaml": partial(text, name) for name in MANIFESTS}
