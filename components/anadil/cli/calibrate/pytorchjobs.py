"""Measurements on a cluster: one PyTorchJob of the Kubeflow training operator for each layout.

Apply one, wait for it, then the next: without a gang scheduler two jobs may each get half of
the machines. The result is a line in the log of one of the pods:

kubectl logs -l training.kubeflow.org/job-name=NAME --tail=-1 > NAME.log
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from anadil.cli.calibrate.results import device_of
from anadil.cli.calibrate.spec import TIMED_STEPS, RunSpec
from anadil.core.errors import RecipeError
from anadil.core.format import counted
from anadil.launch.job import STAGE_LABEL
from anadil.launch.kubernetes.api.kinds import PYTORCHJOB
from anadil.launch.manifests.labels import queue_labels
from anadil.launch.manifests.pod import Container, template
from anadil.launch.manifests.pytorchjob import pytorchjob
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Shape
from anadil.recipe.sections import Recipe

TORCHRUN = ("python", "-m", "torch.distributed.run", "-m", "anadil.cli.calibrate")
"""It takes where to meet and how many processes from the environment."""
NOT_NEEDED: dict[str, object] = {"volumes": (), "secrets": {}, "service_account": None}
"""The model is made at random, so a measurement reads no data and needs no rights."""
DEADLINE_S = 1_800
"""For one job, from its start."""


def job_manifests(
    candidates: Sequence[Layout],
    recipe: Recipe,
    shape: Shape,
    work: Work,
    machine: Machine,
    nodes: int,
    image: str,
) -> list[dict[str, Any]]:
    """PyTorchJobs that measure layouts on some machines of a type.

    Args:
        candidates: Layouts; each takes all devices.
        recipe: See `anadil.cli.calibrate.local.measure_layouts`.
        shape: The model; made at random, so that nothing is downloaded.
        work: What a step computes.
        machine: Of each node.
        nodes: Machines that train together.
        image: Of the pretrain stage.

    Raises:
        RecipeError: A layout does not take all devices.
    """
    for layout in candidates:
        if layout.devices != nodes * machine.devices:
            raise RecipeError(
                f"{layout.name()} takes {counted(layout.devices, 'device')}, {nodes} x {machine.name} have "
                f"{nodes * machine.devices}; change the layout or cluster.nodes"
            )
    specs = [
        RunSpec.of(each, recipe, shape, work, device_of(machine), steps=TIMED_STEPS) for each in candidates
    ]
    return [_job(spec, machine, nodes, image) for spec in specs]


def _job(spec: RunSpec, machine: Machine, nodes: int, image: str) -> dict[str, Any]:
    arguments = spec.arguments()
    identity = json.dumps([arguments, machine.name, nodes, image])
    name = f"anadil-measure-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
    labels = {"app.kubernetes.io/name": "anadil", STAGE_LABEL: "measure", "app.kubernetes.io/instance": name}
    cluster = spec.recipe.cluster.model_copy(update=NOT_NEEDED)
    container = Container(
        name=PYTORCHJOB.container, image=image, command=TORCHRUN, arguments=tuple(arguments)
    )
    devices = 0 if machine.device == CPU else machine.devices
    return pytorchjob(
        {
            "name": name,
            **({"namespace": cluster.namespace} if cluster.namespace else {}),
            "labels": labels | queue_labels(cluster),
        },
        template(container, cluster, labels, machine=machine, devices=devices, nodes=nodes),
        nodes=nodes,
        processes=machine.devices,
        restarts=0,
        deadline_s=DEADLINE_S,
    )
