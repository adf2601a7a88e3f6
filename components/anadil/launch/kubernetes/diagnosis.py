"""Find why a job failed: the worker that failed first, its last lines, and what the cluster says.

When one worker fails, the others follow minutes later with errors of their own; the last error
of worker 0 is seldom the reason.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from anadil.core.errors import AnadilError, BudgetReached
from anadil.launch.backend import error_from_exit_code, log_fields
from anadil.launch.kinds import ApiObject, true_conditions
from anadil.launch.kubernetes.client import JobApi
from anadil.launch.kubernetes.ledger import TOGETHER_S
from anadil.launch.kubernetes.pod_log import TAIL_LINES, tail, write_log_line
from anadil.launch.kubernetes.pods import (
    INFRASTRUCTURE,
    NO_TIME,
    ContainerFailure,
    Worker,
    blame_rank,
    parse_time,
    read_termination_message,
)

log = logging.getLogger(__name__)

MOST_LOGS = 8  # Workers whose logs are compared.
MOST_EVENTS = 15
MAX_MESSAGE_CHARS = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The failure that came first."""

    failure: ContainerFailure
    lines: tuple[str, ...]  # End of its log.
    when: datetime  # Time of its last error, or of its end.

    @property
    def exit_code(self) -> int | None:
        """Exit code of the stage itself, if its termination message has one."""
        return self.failure.stage_code

    @property
    def message(self) -> str:
        """Its last words."""
        text = read_termination_message(self.failure.message).message
        if text or self.failure.reason in INFRASTRUCTURE or self.failure.reason == "OOMKilled":
            return text or self.failure.message
        errors = [fields for line in self.lines if (fields := log_fields(line)).get("level") == "error"]
        return str(errors[-1]["msg"]) if errors else self.failure.message

    @property
    def text(self) -> str:
        """One line: the failure and its place."""
        failure = self.failure
        node = f", node {failure.node}" if failure.node else ""
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        text = " ".join(self.message.split())[:MAX_MESSAGE_CHARS]
        reason = "" if failure.reason == "Error" else f" {failure.reason}"
        return f"worker {failure.index} (pod {failure.pod}{node}) failed first:{reason} {text or 'no last words'}{code}"


def find_root_cause(
    api: JobApi, workers: Sequence[Worker], seen: Sequence[ContainerFailure], streamed: Sequence[str]
) -> RootCause | None:
    """Return the failure that the others followed; None where no pod has failed.

    Args:
        api: Place of the logs.
        workers: Those that still exist.
        seen: Failures of this round that were seen before; their pods may be gone.
        streamed: Last lines of worker 0, for the case that its log is gone.
    """
    latest: dict[str, ContainerFailure] = {each.life: each for each in seen}
    if not latest:
        latest = {each.life: each for worker in workers for each in worker.failures}
        end = max((each.finished for each in latest.values()), default=NO_TIME)
        if end > NO_TIME:
            begin = end - timedelta(seconds=TOGETHER_S)
            latest = {key: each for key, each in latest.items() if each.finished >= begin}
    failures = sorted(latest.values(), key=lambda each: (each.rank, each.finished, each.index))[:MOST_LOGS]
    causes = [_cause(api, failure, workers, streamed) for failure in failures]
    # Whoever was told to stop, or lost another worker, did not begin it; the rest by the time of their last
    # error, which torchrun's own waiting does not delay as it does the end of a container.
    return min(causes, key=lambda each: (blame_rank(each.exit_code, each.message), each.when), default=None)


def report_job_failure(
    api: JobApi, job: ApiObject, cause: RootCause | None, workers: Sequence[Worker]
) -> AnadilError:
    """Log what is known of a failed job, as it was seen last, and return the error that its end is."""
    failed = true_conditions(job).get("Failed", {})
    text = " ".join(f"{failed.get('reason', '')}: {failed.get('message', '')}".split()).strip(": ")
    name = job["metadata"]["name"]
    if failed.get("reason") == "DeadlineExceeded" or "active longer than specified deadline" in text:
        error = error_from_exit_code(BudgetReached.exit_code, f"{name}: {text}")
    elif cause:
        error = error_from_exit_code(cause.exit_code, f"{name}: {cause.text}", cause.failure.reason)
    else:
        reason = text or "no reason given"
        error = error_from_exit_code(None, f"{name}: failed, and no pod tells why ({reason})")
    # First what to do: two hundred lines of a log follow.
    log.error("%s", error)
    if cause:
        log.error("%s: the last %d lines of worker %d:", name, len(cause.lines), cause.failure.index)
        for line in cause.lines:
            write_log_line(line)
    for line in _circumstances(api, job, cause, workers):
        log.error("%s", line)
    if text:
        log.error("%s %s: %s", api.kind.title, name, text)
    return error


def _cause(
    api: JobApi, failure: ContainerFailure, workers: Sequence[Worker], streamed: Sequence[str]
) -> RootCause:
    uid, _, number = failure.life.rpartition(":")
    worker = next((each for each in workers if each.uid == uid), None)
    lines: list[str] = []
    if (
        worker and worker.restarts - int(number) <= 1
    ):  # Kubernetes has the log of this container and of the one before
        lines = tail(api, failure.pod, previous=worker.restarts > int(number))
    if not lines and failure.index == 0:
        lines = list(streamed)[-TAIL_LINES:]
    return RootCause(failure=failure, lines=tuple(lines), when=_error_time(lines) or failure.finished)


def _error_time(lines: Sequence[str]) -> datetime | None:
    """Return when the last error of a log was written, by its own clock."""
    for line in reversed(lines):
        fields = log_fields(line)
        if fields.get("level") == "error":
            when = parse_time(fields.get("ts"))
            return when if when > NO_TIME else None
    return None


def _circumstances(
    api: JobApi, job: ApiObject, cause: RootCause | None, workers: Sequence[Worker]
) -> list[str]:
    """Return other workers' ends, and events of the job and of the worker that failed first."""
    lines = []
    for worker in workers:
        for failure in worker.failures[-1:]:
            code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
            lines.append(f"worker {worker.index}: {failure.reason}{code}, node {worker.node or 'none'}")
    objects = [(job["metadata"]["name"], job["metadata"]["uid"])]
    if cause:
        objects.append((cause.failure.pod, cause.failure.life.rpartition(":")[0]))
    for about, uid in objects:
        try:
            events = api.events(about, uid)[-MOST_EVENTS:]
        except AnadilError as error:
            lines.append(f"events of {about} cannot be read: {error}")
            continue
        for event in events:
            text = " ".join(str(event.get("message", "")).split())[:300]
            lines.append(f"event of {about}: {event.get('reason', '')}: {text}")
    return lines
