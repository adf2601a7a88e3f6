"""Follower of a run on Kubeflow Pipelines: it waits for the end, and says why a run failed."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anadil.core import errors
from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import RETRAIN, flow_of
from anadil.runtime.run_record import StepRecord, read_steps
from anadil_pipelines.server import Kubeflow

log = logging.getLogger(__name__)

POLL_S = 15.0
MAX_FAILED_POLLS = 40
"""Polls in a row that may fail: ten minutes, which a server that is updated needs."""
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


def follow(
    server: Kubeflow, recipe: Recipe, run: str, *, retrains: bool = False, poll_s: float = POLL_S
) -> int:
    """Wait for the end of a run, telling what its steps do; return the exit code of the step that failed.

    A retraining whose result the gate refused has the gate's, as `anadil retrain` has.
    """
    names = [*([RETRAIN] if retrains else []), *(step.name for step in flow_of(recipe))]
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
            for name, state in _steps(current, names):
                if last_states.get(name) != state:
                    last_states[name] = state
                    log.info("%s: %s", name, state.lower())
            if current.state in FINAL_STATES:
                return _exit_code(server, recipe, current, names)
        time.sleep(poll_s)


def _steps(run: Any, steps: Sequence[str]) -> Iterator[tuple[str, str]]:
    names = {*steps, "finish"}
    for task in (run.run_details and run.run_details.task_details) or ():
        if task.display_name in names and task.state:
            yield task.display_name, task.state


def _exit_code(server: Kubeflow, recipe: Recipe, run: Any, names: Sequence[str]) -> int:
    if run.state == "CANCELED":
        log.error("run %s was cancelled; submit the recipe again to go on", run.run_id)
        return errors.Stopped.exit_code
    retrains = RETRAIN in names
    if run.state == "SUCCEEDED" and not retrains:
        log.info("run %s succeeded", run.run_id)
        return 0
    try:
        statuses = read_steps(str(recipe.storage.root), str(run.run_id), names)
    except AnadilError as error:
        statuses = []
        log.warning("how its steps ended cannot be read: %s", error)
    if run.state == "SUCCEEDED":
        return _outcome(str(run.run_id), {status.stage: status for status in statuses})
    for status in statuses:
        if status.exit_code:
            log.error("%s: %s", status.stage, status.message)
            return status.exit_code
    reason = run.error.message if run.error else "no step left a word: evicted, or its pod never started"
    raise PreflightError(
        f"run {run.run_id} failed ({reason}); see {server.link(f'runs/details/{run.run_id}')}"
    )


def _outcome(run: str, statuses: Mapping[str, StepRecord]) -> int:
    """Say what a retraining has released; return its exit code."""
    if RETRAIN in statuses and statuses[RETRAIN].figures.get("state") == "nothing":
        log.info("run %s succeeded: no new text since the champion", run)
        return 0
    outcome = statuses["release"].figures.get("outcome") if "release" in statuses else "not known from here"
    refused = outcome == "refused"
    log.log(logging.ERROR if refused else logging.INFO, "run %s succeeded; its model: %s", run, outcome)
    return errors.GateError.exit_code if refused else 0
