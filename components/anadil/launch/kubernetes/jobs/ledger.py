"""The ledger of a job: annotations that say which launcher made it and what it has used.

A launcher that is killed cannot end its job. Three things remain: the owner reference, by which the job goes
with the workflow that made it; the deadline, which the operator keeps; and this ledger, from which the next
launcher goes on counting. A heartbeat with a sweeper was tried: it suspended work that was going well, and needed
rights, a CronJob and clocks that agree.
"""

import os
import uuid
from datetime import UTC, datetime

from anadil.launch.job import DOMAIN
from anadil.launch.kinds import ApiObject, JobKind, annotations
from anadil.launch.kubernetes.api.pods import parse_time
from anadil.launch.kubernetes.jobs.restarts import RestartCounter

LAUNCHER_ANNOTATION = f"{DOMAIN}/launcher"
"""Name of the launcher that made the job."""
COUNTED_ANNOTATION = f"{DOMAIN}/counted"
"""When the counts were written, RFC 3339."""
COUNTS_ANNOTATION = f"{DOMAIN}/ledger"
"""Time, restarts and failures that launchers have counted, as JSON."""
LAUNCHER_VARIABLE = "ANADIL_LAUNCHER"
"""Name that all pods of one launcher share, such as the tries of a Kubernetes Job."""
POD_VARIABLE = "KFP_POD_NAME"
"""The pod of a pipeline's step. Source: kubeflow/pipelines 2.17, argocompiler/container.go."""


class JobLedger:
    """Whose a job is, and what it has used."""

    def __init__(self) -> None:
        # A pipeline's job has a name of its own, so every try of its step may end it.
        one_try = "pipeline" if POD_VARIABLE in os.environ else uuid.uuid4().hex
        self.launcher = os.environ.get(LAUNCHER_VARIABLE) or one_try
        self.counter = RestartCounter()
        self.is_known = False
        self.is_owner = False
        """True if a signal to this launcher ends the job: it made the job, or another try of its step did."""

    def see(self, job: ApiObject) -> None:
        """Learn from the job who made it."""
        self.is_known = True
        self.is_owner = annotations(job).get(LAUNCHER_ANNOTATION) == self.launcher

    def load(self, kind: JobKind, job: ApiObject) -> float | None:
        """Continue the counts of another launcher; seconds since it wrote them, None where there are none."""
        recorded = annotations(job)
        if COUNTS_ANNOTATION not in recorded:
            return None
        # Without a time, nothing may be charged for the time since: the job would be ended for it.
        counted = recorded.get(COUNTED_ANNOTATION)
        idle_s = (datetime.now(UTC) - parse_time(counted)).total_seconds() if counted else 0.0
        self.counter.load(recorded[COUNTS_ANNOTATION], 0.0 if kind.is_suspended(job) else idle_s)
        return idle_s

    def counts(self) -> dict[str, str]:
        """Annotations with what the job has used so far."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {COUNTED_ANNOTATION: now, COUNTS_ANNOTATION: self.counter.dump()}

    def signature(self) -> dict[str, str]:
        """Annotations of a job that this launcher makes and follows."""
        return {LAUNCHER_ANNOTATION: self.launcher, **self.counts()}
