"""Refuse to retry deterministic failures of a pipeline's step.

Kubeflow Pipelines tries a step again whatever its exit code was. Each try of a launcher would start
its machines again, with a deadline and restarts of their own.
"""

import logging

from anadil.core.errors import AnadilError, DataError
from anadil.launch.backend import FINAL
from anadil.launch.exit_codes import ERROR_CLASSES
from anadil.launch.launcher import LaunchRequest, backend_for, target_of, training_job
from anadil.runtime.planned_artifact import look_up
from anadil.runtime.run_record import StepRecord, read_steps, step_uri
from anadil.runtime.termination import is_deterministic

log = logging.getLogger(__name__)


def refuse_deterministic_retry(request: LaunchRequest, step: str) -> None:
    """Refuse to retry deterministic failures: raise that of the earlier try again.

    What may resume is left alone: a try that was stopped, or killed before it said a word, a failure of
    storage or network; and a job that has outlived the launcher that failed.

    Args:
        request: By a step of a pipeline.
        step: Name under which its status stands.

    Raises:
        AnadilError: The failure.
    """
    root = request.recipe.storage.root
    earlier = _earlier_outcome(root, request.run, step) if root and request.run else None
    if (
        earlier is None
        or earlier.status != "failed"
        or not is_deterministic(earlier.exit_code, earlier.message)
    ):
        return
    if _goes_on(request):
        log.info("an earlier try has failed (%s), but its work is still running", earlier.message)
        return
    uri = step_uri(str(root), request.run, step)
    error = ERROR_CLASSES.get(earlier.exit_code, AnadilError)(
        f"{earlier.message}; so ended an earlier try of this step, and another would: no machine was started. Start a "
        f"new run, or remove {uri} to try it again in this one"
    )
    error.exit_code = earlier.exit_code
    raise error


def _earlier_outcome(root: str, run: str, step: str) -> StepRecord | None:
    try:
        return next(iter(read_steps(root, run, [step])), None)
    except DataError as error:
        log.warning("how an earlier try ended is not known: %s", error)
        return None


def _goes_on(request: LaunchRequest) -> bool:
    """True if the artifact exists, or a job that makes it runs."""
    wanted = target_of(request)
    if look_up(wanted)[0]:
        return True
    try:
        status = backend_for(request.recipe).status(training_job(request, wanted.target).name)
    except DataError:
        return False  # no such job
    return status.state not in FINAL
