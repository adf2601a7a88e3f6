"""A pipeline's step that is tried again, though another try would end the same.

Kubeflow Pipelines tries a step again whatever its exit code was. Each try of a launcher would start
its machines anew, with a deadline and restarts of their own.
"""

import logging

from anadil.core.errors import AnadilError, DataError
from anadil.launch.backend import FINAL
from anadil.launch.exit_codes import CLASSES
from anadil.launch.launcher import Launch, backend_for, job_for, wanted_of
from anadil.runtime import step_status
from anadil.runtime.entry_point import ends_the_same
from anadil.runtime.execute import reusable

log = logging.getLogger(__name__)


def refuse_again(asked: Launch) -> None:
    """Tell the failure of an earlier try of the same step again, if another would end the same.

    What may go on is left alone: a try that was stopped, or killed before it said a word, a failure of
    storage or network; and a job that has outlived the launcher that failed.

    Args:
        asked: By a step of a pipeline.

    Raises:
        AnadilError: The failure.
    """
    root = asked.recipe.storage.root
    before = _before(root, asked) if root and asked.run else None
    if before is None or before.status != "failed" or not ends_the_same(before.exit_code, before.message):
        return
    if _goes_on(asked):
        log.info("an earlier try has failed (%s), but its work goes on", before.message)
        return
    uri = step_status.step_status_uri(str(root), asked.run, asked.stage)
    error = CLASSES.get(before.exit_code, AnadilError)(
        f"{before.message}; so ended an earlier try of this step, and another would: no machine was started. Start a "
        f"new run, or remove {uri} to try it again in this one"
    )
    error.exit_code = before.exit_code
    raise error


def _before(root: str, asked: Launch) -> step_status.StepStatus | None:
    try:
        return next(iter(step_status.step_statuses(root, asked.run, [asked.stage])), None)
    except DataError as error:
        log.warning("how an earlier try ended is not known: %s", error)
        return None


def _goes_on(asked: Launch) -> bool:
    """Whether the artifact is there, or a job that makes it."""
    wanted = wanted_of(asked)
    if reusable(wanted):
        return True
    try:
        status = backend_for(asked.recipe).status(job_for(asked, wanted.target).name)
    except DataError:
        return False  # no such job
    return status.state not in FINAL
