"""The executor that a recipe asks for, of those that the entry point knows."""

import importlib.util
import logging

from anadil.core.errors import PreflightError
from anadil.core.stages import ENGINE_IMAGES
from anadil.runtime.executor import Executor
from anadil.runtime.executors.processes import Processes
from anadil.runtime.executors.ray_tasks import RayTasks
from anadil.runtime.job import Engines, Job

log = logging.getLogger(__name__)

LOCAL_ENGINES: Engines = {
    "processes": lambda job: Processes(job.recipe.clean.workers, stop=job.stop),
    "ray": lambda job: RayTasks(job.recipe.clean.workers, job.work),
}
"""Engines that every program has. What drives a cluster stands above the stages, and comes with `Job.engines`."""


def executor_of(job: Job) -> Executor:
    """The executor of a run of the stage."""
    engine = job.recipe.clean.engine
    make = {**LOCAL_ENGINES, **job.engines}.get(engine)
    if make is None:
        raise PreflightError(
            f"clean.engine: {engine}: `python -m anadil.clean` starts no pods; run `anadil clean`, or "
            f"`python -m anadil.launch.clean` in the image {ENGINE_IMAGES[engine]}"
        )
    return make(job)


def executor_of_this_program(job: Job) -> Executor:
    """The executor that cleans, for a stage whose program may lack it; else processes of this machine."""
    engine = job.recipe.clean.engine
    engines = {**LOCAL_ENGINES, **job.engines}
    if engine in engines and (engine != "ray" or importlib.util.find_spec("ray")):
        return executor_of(job)
    log.info("clean.engine: %s works for clean alone here; going on in processes of this machine", engine)
    return LOCAL_ENGINES["processes"](job)
