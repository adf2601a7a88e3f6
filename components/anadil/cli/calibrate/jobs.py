"""Short runs of layouts on a cluster: one PyTorchJob of the Kubeflow training operator for each.

Apply one, wait for it, then the next: without a gang scheduler two jobs may each get half of the machines. The result
is a line in the log of one of its pods.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from anadil.cli.calibrate.runs import MODULE, RunSpec
from anadil.core.errors import RecipeError
from anadil.core.format import counted
from anadil.launch.job import STAGE_LABEL
from anadil.launch.kinds import PYTORCHJOB
from anadil.launch.manifests.pod import Container, queue_labels, template
from anadil.launch.manifests.training_jobs import pytorchjob
from anadil.plan.instances import CPU, Machine

DEADLINE_S = 1_800
"""Seconds of a job, from its start."""
NOT_NEEDED: dict[str, object] = {"volumes": (), "secrets": {}, "service_account": None}
"""The model is made at random, so a job reads no data and needs no rights."""


def job_manifests(specs: Sequence[RunSpec], machine: Machine, nodes: int, image: str) -> list[dict[str, Any]]:
    """PyTorchJobs that measure layouts, each on all devices of some machines.

    Raises:
        RecipeError: A layout does not take all devices.
    """
    for layout in (spec.layout for spec in specs):
        if layout.devices != nodes * machine.devices:
            raise RecipeError(
                f"{layout.name()} takes {counted(layout.devices, 'device')}, {nodes} x {machine.name} have "
                f"{nodes * machine.devices}; change the layout or cluster.nodes"
            )
    return [_job(spec, machine, nodes, image) for spec in specs]


def _job(spec: RunSpec, machine: Machine, nodes: int, image: str) -> dict[str, Any]:
    argument = spec.as_json()
    identity = json.dumps([argument, machine.name, nodes, image])
    name = f"anadil-measure-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
    labels = {"app.kubernetes.io/name": "anadil", STAGE_LABEL: "measure", "app.kubernetes.io/instance": name}
    cluster = spec.recipe.cluster.model_copy(update=NOT_NEEDED)
    # torchrun takes where to meet and how many processes from the environment.
    command = ("python", "-m", "torch.distributed.run", "-m", MODULE)
    container = Container(name=PYTORCHJOB.container, image=image, command=command, arguments=(argument,))
    namespace = {"namespace": cluster.namespace} if cluster.namespace else {}
    return pytorchjob(
        {"name": name, **namespace, "labels": labels | queue_labels(cluster)},
        template(
            container, cluster, labels, machine=machine, nodes=nodes,
            devices=0 if machine.device == CPU else machine.devices,
        ),
        nodes=nodes, processes=machine.devices, restarts=0, deadline_s=DEADLINE_S,
    )  # fmt: skip
