"""Follow one job to its end: why it waits, its log, and the limits of its use.

It polls, because a watch of the API ends silently, and what happened meanwhile is then unknown. Whatever fails here
leaves the job alone, so that the next launcher finds it.
"""

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NoReturn

from anadil.artifacts import artifact
from anadil.core.errors import AnadilError, BudgetReached, DataError, PreflightError, RetryableError, Stopped
from anadil.core.format import human_seconds
from anadil.launch import job as jobs
from anadil.launch.kubernetes import pods
from anadil.launch.kubernetes.client import API_S, JobApi, Outage
from anadil.launch.kubernetes.ledger import SAME_STEP, TOGETHER_S, JobLedger
from anadil.launch.kubernetes.pod_log import TAIL_LINES, LogRelay, tail, write_log_line

log = logging.getLogger(__name__)

MOST_LOGS = 8  # Workers whose logs are compared.
MOST_EVENTS = 15
MAX_MESSAGE_CHARS = 1_500
OUT_OF_MEMORY = re.compile(r"OOM-?Kill|out of memory", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The failure that came first."""

    failure: pods.ContainerFailure
    lines: tuple[str, ...]  # End of its log.
    when: datetime  # Time of its last error, or of its end.

    @property
    def exit_code(self) -> int | None:
        """Exit code of the stage itself, if its termination message has one."""
        return self.failure.stage_code

    @property
    def message(self) -> str:
        """Its last words."""
        text = pods.read_termination_message(self.failure.message).message
        if self.failure.reason == "OOMKilled":
            return text  # Kubernetes gives the end of the log, before which nobody would see the remedy
        if text or self.failure.reason in pods.INFRASTRUCTURE:
            return text or self.failure.message
        errors = [fields for line in self.lines if (fields := jobs.log_fields(line)).get("level") == "error"]
        return str(errors[-1]["msg"]) if errors else self.failure.message

    @property
    def text(self) -> str:
        """One line: the failure and its place."""
        failure = self.failure
        node = f", node {failure.node}" if failure.node else ""
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        said = " ".join(self.message.split())[:MAX_MESSAGE_CHARS]
        reason = "" if failure.reason == "Error" else failure.reason
        text = " ".join(filter(None, (reason, said))) or "no last words"
        return f"worker {failure.index} (pod {failure.pod}{node}) failed: {text}{code}"


def find_root_cause(
    api: JobApi,
    workers: Sequence[pods.Worker],
    seen: Sequence[pods.ContainerFailure],
    streamed: Sequence[str],
) -> RootCause | None:
    """Return the failure that the others followed; None where no pod has failed.

    Pods of failures that were seen before may be gone, and worker 0's log with them, but not its streamed lines.
    """
    latest: dict[str, pods.ContainerFailure] = {each.life: each for each in seen}
    if not latest:
        latest = {each.life: each for worker in workers for each in worker.failures}
        end = max((each.finished for each in latest.values()), default=pods.NO_TIME)
        if end > pods.NO_TIME:
            begin = end - timedelta(seconds=TOGETHER_S)
            latest = {key: each for key, each in latest.items() if each.finished >= begin}
    failures = sorted(latest.values(), key=lambda each: (each.rank, each.finished, each.index))[:MOST_LOGS]
    causes = [_cause(api, failure, workers, streamed) for failure in failures]
    # Whoever was told to stop, or lost another worker, did not begin it; the rest by the time of their last
    # error, which torchrun's own waiting does not delay as it does the end of a container.
    return min(
        causes, key=lambda each: (pods.blame_rank(each.exit_code, each.message), each.when), default=None
    )


def report_job_failure(
    api: JobApi, job: jobs.ApiObject, cause: RootCause | None, workers: Sequence[pods.Worker]
) -> AnadilError:
    """Log what is known of a failed job, as it was seen last, and return the error that its end is."""
    failed = jobs.true_conditions(job).get("Failed", {})
    text = " ".join(f"{failed.get('reason', '')}: {failed.get('message', '')}".split()).strip(": ")
    name = job["metadata"]["name"]
    circumstances = _circumstances(api, job, cause, workers)
    if failed.get("reason") == "DeadlineExceeded" or "active longer than specified deadline" in text:
        error = jobs.error_from_exit_code(BudgetReached.exit_code, f"{name}: {text}")
    elif cause:
        error = jobs.error_from_exit_code(cause.exit_code, f"{name}: {cause.text}", cause.failure.reason)
    elif killed := next((line for line in circumstances if OUT_OF_MEMORY.search(line)), ""):
        error = jobs.error_from_exit_code(None, f"{name}: {killed}", "OOMKilled")
    else:
        reason = text or "no reason given"
        error = jobs.error_from_exit_code(None, f"{name}: failed, and no pod tells why ({reason})")
    # First what to do: two hundred lines of a log follow.
    log.error("%s", error)
    if cause:
        log.error("%s: the last %d lines of worker %d:", name, len(cause.lines), cause.failure.index)
        for line in cause.lines:
            write_log_line(line)
    for line in circumstances:
        log.error("%s", line)
    if text:
        log.error("%s %s: %s", api.kind.title, name, text)
    return error


def _cause(
    api: JobApi, failure: pods.ContainerFailure, workers: Sequence[pods.Worker], streamed: Sequence[str]
) -> RootCause:
    uid, _, number = failure.life.rpartition(":")
    worker = next((each for each in workers if each.uid == uid), None)
    lines: list[str] = []
    # Kubernetes has the log of this container and of the one before.
    if worker and worker.restarts - int(number) <= 1:
        lines = tail(api, failure.pod, previous=worker.restarts > int(number))
    if not lines and failure.index == 0:
        lines = list(streamed)[-TAIL_LINES:]
    return RootCause(failure=failure, lines=tuple(lines), when=_error_time(lines) or failure.finished)


def _error_time(lines: Sequence[str]) -> datetime | None:
    for line in reversed(lines):
        fields = jobs.log_fields(line)
        if fields.get("level") == "error":
            when = pods.parse_time(fields.get("ts"))
            return when if when > pods.NO_TIME else None
    return None


def _circumstances(
    api: JobApi, job: jobs.ApiObject, cause: RootCause | None, workers: Sequence[pods.Worker]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals and time limits. All are assumptions but where said."""

    poll_s: float = 15.0
    counts_s: float = 60.0  # Between two notes of what the job has used.
    operator_s: float = 300.0  # Until an operator says its first word about a job.
    startup_s: float = 1_800.0  # Until all workers run for the first time; queueing is not counted.
    image_s: float = 120.0
    """Until an image is there that its registry does not have; one that was just pushed may take a while."""
    replacement_s: float = 7_200.0  # Until all workers run again; HyperPod replaces a node in the meantime.
    api_s: float = API_S
    deletion_s: float = 600.0  # Until a deleted job and its pods are gone; they have 150 s to save.
    artifact_s: float = 120.0  # Until storage shows the artifact of a job that has ended well.


class Watcher:
    """Follows one job."""

    def __init__(
        self, api: JobApi, job: jobs.ApiObject, training: jobs.TrainingJob, pace: Pace, ledger: JobLedger
    ) -> None:
        self._api = api
        self._kind = api.kind
        self._job = job
        self._training = training
        self._cluster = training.recipe.cluster
        self._pace = pace
        self._ledger = ledger
        self._counter = ledger.counter
        self._workers: list[pods.Worker] = []
        self._logged = ""
        self._looked = self._next_note = time.monotonic()
        self._outage = Outage(pace.api_s)
        self._pending_s = self._silent_s = self._absent_s = 0.0
        self._recovered_at: int | None = None
        self._exhausted = self._first = ""
        idle_s = ledger.load(api.kind, job)
        since_s = None if idle_s is None else idle_s + pace.poll_s
        self._stream = LogRelay(
            api, job, lambda: next((each.pod for each in self._workers if each.index == 0), ""),
            retry_s=pace.poll_s, since_s=since_s,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self._job["metadata"]["name"])

    def follow(self) -> None:
        """Follow the job until it has ended well."""
        self._stream.start()
        try:
            while not self._is_done():
                time.sleep(self._pace.poll_s)
        finally:
            self._stream.stop()
        self._await_artifact()

    def _is_done(self) -> bool:
        result = self._look()
        if result == "silent":
            return False
        state = self._kind.state(self._job, running=self._num_running)
        if result == "gone" or state in jobs.FINAL:
            self._stream.finish()
            return self._ended(state, gone=result == "gone")
        elapsed_s = time.monotonic() - self._looked
        self._looked += elapsed_s
        if self._exhausted:  # the operator had the time between two looks to say so itself
            self._give_up(self._diagnosed(self._exhausted))
        self._note_counts()
        if state == "queued":
            self._pending_s = self._silent_s = 0.0
            self._counter.suspended()
            self._say(pods.queue_message(self._job))
            return False
        self._counter.run_s += elapsed_s if self._num_running else 0.0
        self._count_failures()
        self._check_deadline()
        self._check_start(elapsed_s)
        return False

    @property
    def _num_running(self) -> int:
        return sum(worker.running for worker in self._workers)

    def _look(self) -> Literal["there", "gone", "silent"]:
        try:
            job = self._api.get(self.name)
            workers = self._api.workers(self.name) if job else []
        except (RetryableError, PreflightError) as error:
            if isinstance(error, PreflightError) and not self._outage.has_answered:
                # Whoever may not look cannot follow it, but another launcher may.
                if not self._ledger.is_owner:
                    raise
                self._give_up(error)
            self._outage.bear(self.name, error, "run the same command again, which finds the job")
            return "silent"
        self._outage.end()
        if job is None:
            return "gone"
        if job["metadata"]["uid"] != self._job["metadata"]["uid"]:
            if jobs.annotations(job).get(jobs.SPEC_ANNOTATION) != jobs.annotations(self._job).get(
                jobs.SPEC_ANNOTATION
            ):
                raise Stopped(f"{self.name}: it was replaced by another job; {jobs.RESUME_HINT}")
            log.info("%s: another launcher has started it again; following that one", self.name)
        self._job = job
        self._ledger.see(job)
        self._workers = workers
        return "there"

    def _ended(self, state: jobs.JobState, *, gone: bool) -> bool:
        if state == "failed" and not gone:
            error = self._diagnosed()
            # A failed job's other workers would wait for it, and cost.
            if any(worker.holds_node for worker in self._workers):
                self._give_up(error)
            raise error
        if not gone:
            log.info("%s: ended well", self.name)
        elif artifact.read_manifest(self._training.target) is None:
            raise Stopped(f"{self.name}: it was deleted while it was followed; {jobs.RESUME_HINT}")
        else:
            log.info("%s: it is gone, but its artifact is there", self.name)
        return True

    def _diagnosed(self, why: str = "") -> AnadilError:
        seen = self._counter.round.failures if self._counter.round else []
        cause = find_root_cause(self._api, self._workers, seen, self._stream.last_lines)
        error = report_job_failure(self._api, self._job, cause, self._workers)
        if why:
            error.args = (f"{why}; {error}",)
        if self._first and self._counter.ended > 1:
            error.args = (f"{error}; the first of {self._counter.ended} failures: {self._first}",)
        return error

    def _give_up(self, error: AnadilError) -> NoReturn:
        """End the job, so that it does not use up workers for nothing."""
        try:
            self._api.delete(self.name, self._job["metadata"]["uid"])
        except AnadilError as failed:
            log.warning("%s cannot be deleted, run `anadil stop %s`: %s", self.name, self.name, failed)
        raise error

    def _count_failures(self) -> None:
        steps = self._stream.steps
        if self._num_running == self._training.nodes and self._recovered_at is None:
            self._recovered_at = steps.num
        recovered = self._recovered_at is not None and steps.num > self._recovered_at
        start = str((self._job.get("status") or {}).get("startTime", ""))
        ended, used = self._counter.ended, self._counter.used
        if not self._counter.observe(self._workers, start, steps, recovered=recovered):
            return
        self._recovered_at = None
        self._next_note = time.monotonic()  # so that a launcher that takes over knows
        allowed, step = self._cluster.restarts, self._counter.failing_step
        failures = self._counter.round.failures if self._counter.round else []
        cause = find_root_cause(self._api, self._workers, failures, self._stream.last_lines)
        self._first = self._first or (cause.text if cause else "")
        final = [each.stage_code for each in failures if each.would_come_again]
        if final:
            self._exhausted = f"exit code {final[0]}: another start would end the same"
        elif step is not None:
            starts = f"the last {SAME_STEP} starts ended there"
            self._exhausted = f"deterministic failure at step {step:,}, {starts}"
        elif self._counter.used > allowed:
            self._exhausted = f"failed {self._counter.used} times, cluster.restarts allows {allowed} restarts"
        elif self._counter.used > used:
            words = cause.text if cause else "a worker failed"
            log.warning("%s: %s; restart %d of %d", self.name, words, self._counter.used, allowed)
        elif self._counter.ended > ended:
            log.warning("%s: the cluster took a worker away; this uses up no restart", self.name)

    def _check_deadline(self) -> None:
        hours = self._cluster.deadline_hours
        if hours and self._counter.run_s > hours * 3_600:
            ran = human_seconds(self._counter.run_s)
            text = (
                f"ran for {ran}, cluster.deadline_hours allows {hours:g} h; raise it and {jobs.RESUME_HINT}"
            )
            self._give_up(BudgetReached(f"{self.name}: {text}"))

    def _check_start(self, elapsed_s: float) -> None:
        started = sum(each.running or each.phase == "Succeeded" for each in self._workers)
        if started >= self._training.nodes:
            self._pending_s = self._silent_s = self._absent_s = 0.0
            nodes = ", ".join(sorted({each.node for each in self._workers if each.node}))
            self._say(f"runs on {nodes or 'a node'}")
            return
        self._pending_s += elapsed_s
        events = self._events()
        text = pods.pending_message(self._kind, self._workers, events, self._training.nodes)
        self._say(text)
        self._check_image(pods.missing_image(self._workers, events), elapsed_s)
        self._silent_s = 0.0 if self._job.get("status") or self._workers else self._silent_s + elapsed_s
        if self._silent_s > self._pace.operator_s:
            text = f"nobody has acted on it for {human_seconds(self._silent_s)}; start {self._kind.operator}"
            self._give_up(PreflightError(f"{self.name}: {text}"))
        limit_s = self._pace.replacement_s if self._counter.run_s else self._pace.startup_s
        if self._pending_s > limit_s:
            self._give_up(PreflightError(f"{self.name}: not started after {human_seconds(limit_s)}: {text}"))

    def _check_image(self, absent: str, elapsed_s: float) -> None:
        """End what waits for an image that does not exist; a registry that is out of reach may come back."""
        hopeless = [each for each in self._workers if each.reason in pods.PERMANENT_WAITS]
        reason = f"{hopeless[0].reason}: {hopeless[0].message}" if hopeless else absent
        self._absent_s = self._absent_s + elapsed_s if absent else 0.0
        if hopeless or self._absent_s > self._pace.image_s:
            self._give_up(PreflightError(f"{self.name}: never starts: {reason}; {pods.remedy_for(reason)}"))

    def _events(self) -> list[jobs.ApiObject]:
        objects = [(self.name, str(self._job["metadata"]["uid"]))]
        objects += [(each.pod, each.uid) for each in self._workers if not each.running][:1]
        try:
            return [event for about in objects for event in self._api.events(*about)]
        except AnadilError as error:
            log.debug("events cannot be read: %s", error)
            return []

    def _note_counts(self) -> None:
        if time.monotonic() < self._next_note:
            return
        self._next_note = time.monotonic() + self._pace.counts_s
        try:
            self._api.patch(self.name, {"metadata": {"annotations": self._ledger.counts()}})
        except AnadilError as error:
            # The job's work is worth more than its counts.
            log.warning("%s: what it has used cannot be noted: %s", self.name, error)

    def _say(self, text: str) -> None:
        if text != self._logged:
            log.info("%s: %s", self.name, text)
            self._logged = text

    def _await_artifact(self) -> None:
        """Wait for the artifact: the operator calls a job done when its first worker is."""
        deadline = time.monotonic() + self._pace.artifact_s
        while artifact.read_manifest(self._training.target) is None:
            if time.monotonic() > deadline:
                raise DataError(
                    f"{self._training.target}: no artifact there, though {self.name} succeeded; see its log, and "
                    "whether this machine sees the same storage"
                )
            time.sleep(self._pace.poll_s)
