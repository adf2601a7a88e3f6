"""Which executor a recipe asks for; each is loaded only where it is chosen."""

import importlib

from anadil.runtime.executors import Executor
from anadil.runtime.job import Job

ENGINES = {
    "processes": "anadil.runtime.executors.processes",
    "ray": "anadil.runtime.executors.ray_tasks",
    # By name: what talks to clusters stands above the stages.
    "job": "anadil.launch.kubernetes.executors.indexed_job",
}
"""`clean.engine` -> module with `executor(job)`."""


def executor_of(job: Job) -> Executor:
    """The executor of a run of the stage."""
    module = importlib.import_module(ENGINES[job.recipe.clean.engine])
    made: Executor = module.executor(job)
    return made
