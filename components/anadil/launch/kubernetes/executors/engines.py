"""The engines of `clean` that drive pods, for the entry points that hand them to the stage."""

import os

from anadil.launch.kubernetes.executors.indexed_job import IndexedJob
from anadil.launch.kubernetes.executors.ray_cluster import RayCluster
from anadil.runtime.executors.ray_tasks import ADDRESS_VARIABLE, RayTasks
from anadil.runtime.job import Engines, Job


def _indexed_job(job: Job) -> IndexedJob:
    return IndexedJob(job.recipe, job.work)


def _ray(job: Job) -> RayTasks:
    """Ray; a pod without RAY_ADDRESS makes a cluster for the run."""
    makes = ADDRESS_VARIABLE not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ
    return RayTasks(job.recipe.clean.workers, job.work, RayCluster(job) if makes else None)


CLUSTER_ENGINES: Engines = {"job": _indexed_job, "ray": _ray}
