"""Exit codes of training processes as errors of ours."""

from anadil.core.errors import (
    BUG,
    INTERRUPTED,
    AnadilError,
    BudgetReached,
    DataError,
    GateError,
    IntegrityError,
    PreflightError,
    RecipeError,
    RetryableError,
    Stopped,
)

ERROR_CLASSES: dict[int, type[AnadilError]] = {
    error.exit_code: error
    for error in (
        RecipeError, DataError, PreflightError, IntegrityError, GateError, BudgetReached, RetryableError, Stopped,
    )
}  # fmt: skip
KILLED = 137
"""128 + SIGKILL: by the kernel where memory ran out, by the kubelet where the time to save was over."""
CANNOT_START = (126, 127, 128)
"""The container's program is not there or cannot be run. Source: POSIX shell; containerd."""
RESUME_HINT = "launch it again to resume from its last checkpoint"


def error_from_exit_code(exit_code: int | None, text: str, reason: str = "") -> AnadilError:
    """The error that an exit code stands for.

    Args:
        exit_code: Of the process that failed first; None where it is not known.
        text: What happened, and where.
        reason: The cluster's own word, such as `OOMKilled`.
    """
    if reason == "OOMKilled":
        return PreflightError(
            f"{text}; more memory is needed: raise cluster.resources, or let `anadil plan` say how much"
        )
    if exit_code in CANNOT_START or reason in ("StartError", "ContainerCannotRun"):
        return PreflightError(f"{text}; the image cannot start: correct cluster.image")
    if exit_code in ERROR_CLASSES:
        return ERROR_CLASSES[exit_code](f"{text}; {_next(exit_code)}")
    if exit_code is None or exit_code == KILLED:
        return RetryableError(f"{text}; {RESUME_HINT}")
    error = AnadilError(f"{text}; see its log, then {RESUME_HINT}")
    if exit_code in (BUG, INTERRUPTED):
        error.exit_code = exit_code
    return error


def _next(exit_code: int) -> str:
    if exit_code == RecipeError.exit_code:
        return "correct the recipe and launch it again"
    if exit_code in (BudgetReached.exit_code, RetryableError.exit_code, Stopped.exit_code):
        return RESUME_HINT
    return f"then {RESUME_HINT}"
