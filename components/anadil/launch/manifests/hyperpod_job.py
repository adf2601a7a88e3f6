"""A training job as a HyperPodPyTorchJob of the HyperPod training operator: an export, not a backend.

The operator needs `hyperpodrun` in the image, from the package hyperpod-elastic-agent. Its version
1.1.3 asks for torch below 2.12 and replaces a newer one without a word, so the images of this
project do not hold it: build your own with both, name it as `cluster.image`, and try it. Nothing here
follows such a job. AWS publishes no definition of the resource; the fields are those of its
command line.

Source: aws/sagemaker-hyperpod-cli (commit 011ca92), hyperpod_pytorch_job_unified_config.py.
"""

import logging
from typing import Any

from anadil.launch.job import TrainingJob
from anadil.launch.manifests.labels import metadata_of
from anadil.launch.manifests.log_rules import log_rules
from anadil.launch.manifests.pod import TMP, Container, container_of, template_of, with_hash
from anadil.launch.manifests.pytorchjob import CONTAINER, KEPT_S, deadline_s, warn_of_lost_work

log = logging.getLogger(__name__)

API_VERSION = "sagemaker.amazonaws.com/v1"
KIND = "HyperPodPyTorchJob"
AGENT_PORT = 8_080
"""Where the operator talks to `hyperpodrun`. Source: Amazon SageMaker AI guide, training operator."""
PERIOD_S = 3_600
"""Time in which restarts are counted. Assumption."""


def render(job: TrainingJob) -> dict[str, Any]:
    """The manifest.

    Raises:
        RecipeError: The recipe asks for what no such job can do.
    """
    log.warning("%s: needs an image with hyperpodrun and torch below 2.12; %s has none", KIND, job.image)
    warn_of_lost_work(job)
    cluster = job.recipe.cluster
    deadline = deadline_s(job)
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata_of(job),
        "spec": {
            "nprocPerNode": str(job.processes),
            "replicaSpecs": [{"name": "pods", "replicas": job.nodes, "template": _template(job)}],
            "runPolicy": {
                "cleanPodPolicy": "None",
                "jobMaxRetryCount": cluster.restarts,
                "restartPolicy": {"evalPeriodSeconds": PERIOD_S, "maxFullJobRestarts": cluster.restarts},
                "logMonitoringConfiguration": log_rules(job.stage),
                **({"activeDeadlineSeconds": deadline} if deadline else {}),
                "ttlSecondsAfterFinished": KEPT_S,
            },
        },
    }
    return with_hash(manifest)


def _template(job: TrainingJob) -> dict[str, Any]:
    """The pod, without the group of its volumes, which AWS's model of the resource has no field for."""
    template = template_of(job, _container(job))
    context = template["spec"]["securityContext"]
    for field in ("fsGroup", "fsGroupChangePolicy"):
        del context[field]
    return template


def _container(job: TrainingJob) -> Container:
    """The stage under HyperPod's launcher, which starts it once for each process, as torchrun does."""
    plain = container_of(job, CONTAINER)
    return Container(
        name=plain.name,
        image=plain.image,
        command=("hyperpodrun",),
        arguments=(
            f"--nproc-per-node={job.processes}", "--tee=3", f"--log_dir={TMP}/hyperpod",
            "-m", f"anadil.{job.stage}", *plain.arguments,
        ),
        environment=plain.environment,
        ports=(*plain.ports, ("agent", AGENT_PORT)),
    )  # fmt: skip
