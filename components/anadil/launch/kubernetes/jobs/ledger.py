"""The ledger of a job: annotations that say who follows it and what it has used.

A job whose launcher is gone is looked after by three things only: its owner reference (it goes with the
workflow that made it), its deadline (which the operator keeps), and this ledger, by which the next
launcher takes it over and the sweeper suspends it.
"""

import logging
import os
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from anadil.core.errors import PreflightError
from anadil.launch.job import DOMAIN, OUR_JOBS
from anadil.launch.kubernetes.api.client import JobApi, Patience
from anadil.launch.kubernetes.api.errors import MissingResourceKind
from anadil.launch.kubernetes.api.kinds import (
    JOB_KINDS,
    QUEUE_LABEL,
    ApiObject,
    JobKind,
    annotations,
    is_final,
    job_kind,
    labels,
)
from anadil.launch.kubernetes.jobs.restarts import RestartCounter
from anadil.launch.kubernetes.pods.pods import parse_time

log = logging.getLogger(__name__)

LAUNCHER_ANNOTATION = f"{DOMAIN}/launcher"
"""Which launcher follows the job."""
HEARTBEAT_ANNOTATION = f"{DOMAIN}/heartbeat"
"""When that launcher last polled the job, RFC 3339."""
COUNTS_ANNOTATION = f"{DOMAIN}/ledger"
"""Time, restarts and failures that the launcher has counted, as JSON."""
DETACHED_ANNOTATION = f"{DOMAIN}/detached"
"""`true` where the job was started to be followed by nobody."""
SWEPT_ANNOTATION = f"{DOMAIN}/swept"
"""When the job was suspended because nobody followed it."""
POD_VARIABLE = "KFP_POD_NAME"
"""The pod of a pipeline's step. Source: kubeflow/pipelines 2.17, argocompiler/container.go."""


class JobLedger:
    """What this launcher knows of whose a job is, and what the job has used.

    The heartbeat of another launcher is alive while it changes: clocks of two hosts may differ.
    """

    def __init__(self, live_s: float = 0.0) -> None:
        """Nothing is known yet.

        Args:
            live_s: Without a new heartbeat the launcher that left the last one counts as dead.
        """
        # A pipeline's job has a name of its own, so that a step that is tried again takes it over at once.
        self.launcher = "pipeline" if POD_VARIABLE in os.environ else uuid.uuid4().hex
        self.counter = RestartCounter()
        self.is_known = False
        self.is_guest = False
        """Whether another launcher follows the job, and so this one may not end it."""
        self._live_s = live_s
        self._beat = ""
        self._beat_until = 0.0

    def see(self, job: ApiObject) -> None:
        """Learn from the job, as it is now, who follows it."""
        recorded = annotations(job)
        beat = recorded.get(HEARTBEAT_ANNOTATION, "")
        is_mine = recorded.get(LAUNCHER_ANNOTATION) == self.launcher
        if beat != self._beat:
            # Of the first one that is seen only its time tells how old it is.
            age_s = 0.0 if self._beat else _age_s(beat)
            self._beat, self._beat_until = beat, time.monotonic() + self._live_s - max(0.0, age_s)
        is_alive = bool(beat) and time.monotonic() < self._beat_until
        was_guest = self.is_guest
        self.is_guest = is_alive and not is_mine and recorded.get(DETACHED_ANNOTATION) != "true"
        self.is_known = True
        name = job["metadata"]["name"]
        if self.is_guest and not was_guest:
            log.info(
                "%s: another launcher follows it; its last sign of life was %d s ago. This one watches, leaves the job "
                "when it ends, and takes it over after %d s without one",
                name, max(0.0, _age_s(beat)), self._live_s,
            )  # fmt: skip
        elif was_guest and not self.is_guest:
            log.info(
                "%s: the launcher that followed it gave no sign of life for %d s; this one takes it over",
                name, max(0.0, _age_s(beat)),
            )  # fmt: skip

    def load(self, kind: JobKind, job: ApiObject) -> float | None:
        """Continue the counts of another launcher; seconds since it wrote them, None where there are none."""
        recorded = annotations(job)
        if COUNTS_ANNOTATION not in recorded:
            return None
        idle_s = _age_s(recorded.get(HEARTBEAT_ANNOTATION, ""))
        self.counter.load(recorded[COUNTS_ANNOTATION], 0.0 if kind.is_suspended(job) else idle_s)
        return idle_s

    def heartbeat(self) -> dict[str, str]:
        """Annotations that tell the sweeper and other launchers that somebody follows the job."""
        return {
            HEARTBEAT_ANNOTATION: _now(),
            LAUNCHER_ANNOTATION: self.launcher,
            COUNTS_ANNOTATION: self.counter.dump(),
        }

    def adoption(self, *, detach: bool) -> ApiObject:
        """The change of annotations by which this launcher takes a job over, or leaves it to itself."""
        if detach:
            return {DETACHED_ANNOTATION: "true"}
        return {DETACHED_ANNOTATION: None, LAUNCHER_ANNOTATION: self.launcher}


def sweep(
    namespace: str | None,
    *,
    stale_minutes: float,
    kinds: Sequence[str] = tuple(JOB_KINDS),
    patience: Patience | None = None,
) -> list[str]:
    """Suspend the jobs that nobody has followed for some time; their names.

    A job in a Kueue queue is deleted instead: Kueue would resume it at once. What it saved stays.

    Args:
        namespace: Left out, that of this pod or of the kubeconfig's context.
        stale_minutes: Since the last heartbeat.
        kinds: To look for: `pytorchjob`, `trainjob`.
        patience: How often a call of the API is tried.

    Raises:
        PreflightError: None of the kinds may be read.
    """
    oldest = datetime.now(UTC) - timedelta(minutes=stale_minutes)
    swept, refused = [], []
    for kind in map(job_kind, kinds):
        api = JobApi(kind, namespace, patience)
        try:
            jobs = api.jobs(OUR_JOBS)
        except MissingResourceKind as error:
            log.info("nothing to sweep: %s", error)
            continue
        except PreflightError as error:
            # The right is checked before the kind: most clusters have one kind and give the right to it.
            refused.append(error)
            continue
        orphans = [job for job in jobs if _is_orphan(kind, job, oldest)]
        swept += [job["metadata"]["name"] for job in orphans if _suspend(api, job)]
    if len(refused) == len(kinds):
        raise refused[0]
    for each in refused:
        log.warning("not checked: %s", each)
    return swept


def resume_if_swept(api: JobApi, job: ApiObject) -> None:
    """Resume what was suspended while no launcher followed it."""
    if SWEPT_ANNOTATION not in annotations(job):
        return
    name = job["metadata"]["name"]
    change = {"metadata": {"annotations": {SWEPT_ANNOTATION: None}}, **api.kind.suspending(yes=False)}
    api.patch(name, change)
    log.info("%s: resumed; it was suspended while nobody followed it", name)


def _is_orphan(kind: JobKind, job: ApiObject, oldest: datetime) -> bool:
    recorded = annotations(job)
    if is_final(kind, job) or "deletionTimestamp" in job["metadata"]:
        return False
    if recorded.get(DETACHED_ANNOTATION) == "true" or HEARTBEAT_ANNOTATION not in recorded:
        return False  # nobody was to follow it
    is_queued = QUEUE_LABEL in labels(job)
    return parse_time(recorded[HEARTBEAT_ANNOTATION]) < oldest and (is_queued or not kind.is_suspended(job))


def _suspend(api: JobApi, job: ApiObject) -> bool:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    if QUEUE_LABEL in labels(job):
        log.info("%s: deleting it, as Kueue would resume it", name)
        return api.delete(name, uid)
    change = {
        "metadata": {"annotations": {SWEPT_ANNOTATION: _now()}, "uid": uid},
        **api.kind.suspending(yes=True),
    }
    return api.patch(name, change) is not None


def _age_s(moment: str) -> float:
    return (datetime.now(UTC) - parse_time(moment)).total_seconds()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
