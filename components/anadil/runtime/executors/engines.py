"""The executor that a recipe asks for, of those that the entry point knows."""

from anadil.core.errors import PreflightError
from anadil.core.stages import ENGINE_IMAGES
from anadil.runtime.executor import Executor
from anadil.runtime.executors import processes, ray_tasks
from anadil.runtime.job import Engines, Job

LOCAL_ENGINES: Engines = {"processes": processes.executor, "ray": ray_tasks.executor}
"""Engines that every program has. What drives a cluster stands above the stages, and comes with `Job.engines`."""


def executor_of(job: Job) -> Executor:
    """The executor of a run of the stage.

    Raises:
        PreflightError: The program that runs has no such engine.
    """
    engine = job.recipe.clean.engine
    make = {**LOCAL_ENGINES, **job.engines}.get(engine)
    if make is None:
        raise PreflightError(
            f"clean.engine: {engine}: `python -m anadil.clean` starts no pods; run `anadil clean`, or "
            f"`python -m anadil.launch.clean` in the image {ENGINE_IMAGES[engine]}"
        )
    return make(job)
