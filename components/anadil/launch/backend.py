"""The interface of every way to run a training job, and the errors that exit codes stand for."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from anadil.core import errors
from anadil.core.errors import AnadilError, PreflightError, RecipeError, RetryableError
from anadil.core.format import visible, visible_lines
from anadil.launch.job import TrainingJob

JobState = Literal["queued", "starting", "running", "restarting", "succeeded", "failed", "stopped"]
FINAL: tuple[JobState, ...] = ("succeeded", "failed", "stopped")
# 128 + SIGKILL: by the kernel where memory ran out, by the kubelet where the time to save was over.
KILLED = 137
# The container's program does not exist or cannot run. Source: POSIX; containerd.
CANNOT_START = (126, 127, 128)
RESUME_HINT = "launch it again to resume from its last checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """State of a job."""

    name: str
    state: JobState
    reason: str = ""  # The backend's own word, such as `OOMKilled` or `MaxWaitTimeExceeded`.
    message: str = ""  # For people: the reason that it waits or failed.
    nodes: int = 0  # Workers asked for.
    running: int = 0  # Workers that run.
    restarts: int = 0
    seconds: float | None = None  # Since its first worker ran; None before.
    artifact: str = ""  # URI that it writes.
    exit_code: int | None = None  # That of the process that failed first, where it is known.


class JobBackend(Protocol):
    """One way to run a training job."""

    def render(self, job: TrainingJob) -> dict[str, Any]:
        """Return the exact manifest or request, without side effects."""
        ...

    def run(self, job: TrainingJob, *, detach: bool = False) -> None:
        """Start the job, or adopt the one of the same name, and follow it to its end.

        If `detach`, return once it is started; then no signal ends it.
        """
        ...

    def status(self, name: str) -> JobStatus:
        """Return the state of the job of a name."""
        ...

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield log lines of the first worker, without line ends."""
        ...

    def stop(self, name: str) -> bool:
        """End the job, which saves first; return False where it had ended before."""
        ...


def log_fields(line: str) -> dict[str, Any]:
    """Return the JSON object of a stage's log line; empty where it is something else."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def format_log_line(line: str) -> str:
    """Format a stage's JSON line as `stage: message`; other lines stay, without control characters."""
    fields = log_fields(line)
    if not {"level", "stage", "msg"} <= fields.keys():
        return visible(line)
    level = "" if fields["level"] == "info" else f"{fields['level']}: "
    return visible_lines(f"{fields['stage']}: {level}{fields['msg']}")


def error_from_exit_code(exit_code: int | None, text: str, reason: str = "") -> AnadilError:
    """Return the error of the exit code of the process that failed first, where it is known.

    The text says what failed and where; the reason is the cluster's own word, such as `OOMKilled`.
    """
    if reason == "OOMKilled":
        return PreflightError(
            f"{text}; more memory is needed: raise cluster.resources, or let `anadil plan` say how much"
        )
    if exit_code in CANNOT_START or reason in ("StartError", "ContainerCannotRun"):
        return PreflightError(f"{text}; the image cannot start: correct cluster.image")
    if exit_code == RecipeError.exit_code:
        return RecipeError(f"{text}; correct the recipe and launch it again")
    if kind := errors.BY_EXIT_CODE.get(exit_code or 0):
        resumable = kind in (errors.BudgetReached, RetryableError, errors.Stopped)
        return kind(f"{text}; {'' if resumable else 'then '}{RESUME_HINT}")
    if exit_code is None or exit_code == KILLED:
        return RetryableError(f"{text}; {RESUME_HINT}")
    error = AnadilError(f"{text}; see its log, then {RESUME_HINT}")
    if exit_code in (errors.BUG, errors.INTERRUPTED):
        error.exit_code = exit_code
    return error
