"""`python -m anadil.launch.clean`: the entry point of the image clean-ray: the stage `clean`, which may drive pods."""

import os
import sys

from anadil.runtime.entry_point import main
from anadil.runtime.executor import Executor
from anadil.runtime.executors.ray_tasks import ADDRESS_VARIABLE, RayTasks
from anadil.runtime.job import Engines, Job

# Imported where they are chosen: the clients of a cluster load slower than all of `anadil clean`, which mostly needs none.


def _indexed_job(job: Job) -> Executor:
    from anadil.launch.kubernetes.clean_pods import IndexedJob

    return IndexedJob(job.recipe, job.work)


def _ray(job: Job) -> Executor:
    """Return Ray; a pod without RAY_ADDRESS makes a cluster for the run."""
    if ADDRESS_VARIABLE in os.environ or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return RayTasks(job.recipe.clean.workers, job.work)
    from anadil.launch.kubernetes.clean_pods import RayCluster

    return RayTasks(job.recipe.clean.workers, job.work, RayCluster(job))


CLUSTER_ENGINES: Engines = {"job": _indexed_job, "ray": _ray}


if __name__ == "__main__":
    sys.exit(main("clean", engines=CLUSTER_ENGINES))
