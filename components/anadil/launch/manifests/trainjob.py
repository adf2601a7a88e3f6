"""Render a training job as a TrainJob of Kubeflow Trainer 2, against the runtime `torch-distributed`.

The trainer tells torchrun by PET_* variables where to meet, and refuses a job that sets them. What
a TrainJob has no field for stays with the runtime: how often a failed job is restarted, how long a
finished one is kept, and the token of the ServiceAccount.

Source: kubeflow/trainer 2.3.0, manifests/base/crds; its plugins torch and jobset.
"""

import logging
from typing import Any

from anadil.launch.job import DOMAIN, TrainingJob
from anadil.launch.kinds import TRAINJOB
from anadil.launch.manifests.labels import metadata_of
from anadil.launch.manifests.pod import container_of, template_of, with_hash
from anadil.launch.manifests.pytorchjob import deadline_s, warn_of_lost_work

log = logging.getLogger(__name__)

RUNTIME = "torch-distributed"  # ClusterTrainingRuntime that Trainer 2 installs.
MANAGER = f"{DOMAIN}/launch"
# Fields of a pod that a patch of the runtime may hold.
PATCHED = (
    "serviceAccountName", "imagePullSecrets", "terminationGracePeriodSeconds", "nodeSelector", "affinity",
    "tolerations", "securityContext", "volumes",
)  # fmt: skip


def render_trainjob(job: TrainingJob) -> dict[str, Any]:
    """Return the manifest of a job.

    Raises:
        RecipeError: The recipe asks for what no TrainJob can do.
    """
    if job.recipe.cluster.hyperpod:
        log.warning(
            "cluster.hyperpod: HyperPod does not resume a TrainJob; use the backend pytorchjob for that"
        )
    warn_of_lost_work(job)
    # The runtime has a command of its own, so the image's entrypoint has to be said.
    template = template_of(
        job, container_of(job, TRAINJOB.container, ("python", "-m", f"anadil.{job.stage}"))
    )
    pod = template["spec"]
    container = pod["containers"][0]
    deadline = deadline_s(job)
    patch = {
        "metadata": template["metadata"],
        "spec": {
            **{name: pod[name] for name in PATCHED if name in pod},
            "containers": [{name: container[name] for name in ("name", "securityContext", "volumeMounts")}],
        },
    }
    manifest = {
        "apiVersion": TRAINJOB.api_version,
        "kind": TRAINJOB.title,
        "metadata": metadata_of(job),
        "spec": {
            "runtimeRef": {"apiGroup": TRAINJOB.group, "kind": "ClusterTrainingRuntime", "name": RUNTIME},
            "trainer": {
                "numNodes": job.nodes,
                "numProcPerNode": job.processes,
                **{name: container[name] for name in ("image", "command", "args", "env")},
                "resourcesPerNode": container["resources"],
            },
            **({"activeDeadlineSeconds": deadline} if deadline else {}),
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": _around(patch)}],
        },
    }
    return with_hash(manifest)


def _around(template: dict[str, Any]) -> dict[str, Any]:
    """Wrap a pod template as the patch of a runtime with one job."""
    job = {"name": TRAINJOB.container, "template": {"spec": {"template": template}}}
    return {"template": {"spec": {"replicatedJobs": [job]}}}
