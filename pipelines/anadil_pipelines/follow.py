"""Follower of a run on Kubeflow Pipelines: it waits for the end, and says why a run failed."""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from anadil.core import errors
from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import flow_of
from anadil.runtime.run_record import read_steps
from anadil_pipelines.server import Kubeflow

log = logging.getLogger(__name__)

POLL_S = 15.0
MAX_FAILED_POLLS = 40
"""Polls in a row that may fail: ten minutes, which a server that is updated needs."""
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


def follow(server: Kubeflow, recipe: Recipe, run: str, *, poll_s: float = POLL_S) -> int:
    """Wait for the end of a run, telling what its steps do; return the exit code of the step that failed.

    Raises:
        RetryableError: The server has not answered for ten minutes.
    """
    last_states: dict[str, str] = {}
    failures = 0
    while True:
        try:
            current = server.get_run(run)
        except RetryableError as error:
            failures += 1
            if failures >= MAX_FAILED_POLLS:
                raise
            log.warning("%s", error)
        else:
            failures = 0
            for name, state in _steps(current, [step.name for step in flow_of(recipe)]):
                if last_states.get(name) != state:
                    last_states[name] = state
                    log.info("%s: %s", name, state.lower())
            if current.state in FINAL_STATES:
                return _exit_code(server, recipe, current)
        time.sleep(poll_s)


def _steps(run: Any, steps: Sequence[str]) -> Iterator[tuple[str, str]]:
    names = {*steps, "finish"}
    for task in (run.run_details and run.run_details.task_details) or ():
        if task.display_name in names and task.state:
            yield task.display_name, task.state


def _exit_code(server: Kubeflow, recipe: Recipe, run: Any) -> int:
    if run.state == "SUCCEEDED":
        log.info("run %s succeeded", run.run_id)
        return 0
    if run.state == "CANCELED":
        log.error("run %s was cancelled; submit the recipe again to go on", run.run_id)
        return errors.Stopped.exit_code
    stages = [step.name for step in flow_of(recipe)]
    try:
        statuses = read_steps(str(recipe.storage.root), str(run.run_id), stages)
    except AnadilError as error:
        statuses = []
        log.warning("how its steps ended cannot be read: %s", error)
    for status in statuses:
        if status.exit_code:
            log.error("%s: %s", status.stage, status.message)
            return status.exit_code
    reason = run.error.message if run.error else "no step left a word: evicted, or its pod never started"
    raise PreflightError(
        f"run {run.run_id} failed ({reason}); see {server.link(f'runs/details/{run.run_id}')}"
    )
