"""Exit codes of training processes as errors of ours."""

from anadil.core import errors
from anadil.core.errors import AnadilError, PreflightError, RecipeError, RetryableError

ERROR_CLASSES: dict[int, type[AnadilError]] = {
    error.exit_code: error
    for error in (
        RecipeError, errors.DataError, PreflightError, errors.IntegrityError, errors.GateError, errors.BudgetReached,
        RetryableError, errors.Stopped,
    )
}  # fmt: skip
# 128 + SIGKILL: by the kernel where memory ran out, by the kubelet where the time to save was over.
KILLED = 137
# The container's program does not exist or cannot run. Source: POSIX; containerd.
CANNOT_START = (126, 127, 128)
RESUME_HINT = "launch it again to resume from its last checkpoint"


def error_from_exit_code(exit_code: int | None, text: str, reason: str = "") -> AnadilError:
    """Return the error that an exit code stands for.

    Args:
        exit_code: That of the process that failed first; None where it is not known.
        text: Failure and place.
        reason: The cluster's own word, such as `OOMKilled`.
    """
    if reason == "OOMKilled":
        return PreflightError(
            f"{text}; more memory is needed: raise cluster.resources, or let `anadil plan` say how much"
        )
    if exit_code in CANNOT_START or reason in ("StartError", "ContainerCannotRun"):
        return PreflightError(f"{text}; the image cannot start: correct cluster.image")
    if exit_code == RecipeError.exit_code:
        return RecipeError(f"{text}; correct the recipe and launch it again")
    if exit_code in ERROR_CLASSES:
        resumable = ERROR_CLASSES[exit_code] in (errors.BudgetReached, RetryableError, errors.Stopped)
        return ERROR_CLASSES[exit_code](f"{text}; {'' if resumable else 'then '}{RESUME_HINT}")
    if exit_code is None or exit_code == KILLED:
        return RetryableError(f"{text}; {RESUME_HINT}")
    error = AnadilError(f"{text}; see its log, then {RESUME_HINT}")
    if exit_code in (errors.BUG, errors.INTERRUPTED):
        error.exit_code = exit_code
    return error
