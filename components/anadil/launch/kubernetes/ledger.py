"""The use of a job (time, restarts, failures) and the launcher that made it, kept in its annotations.

A launcher that is killed cannot end its job. Three things remain: the owner reference, by which the job goes with the
workflow that made it; the deadline, which the operator keeps; and this ledger, from which the next launcher goes on
counting. A heartbeat with a sweeper was tried: it suspended work that was going well, and needed rights, a CronJob
and clocks that agree.

Source: kubeflow/trainer v1.9.4, pkg/util/fake_workqueue.go, pkg/controller.v1/common/job.go: the training operator
does not count pods that were replaced, and checks its deadline only when something happens.
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from anadil.launch.job import DOMAIN, ApiObject, JobKind, annotations
from anadil.launch.kubernetes.pods import ContainerFailure, Worker, parse_time

log = logging.getLogger(__name__)

LAUNCHER_ANNOTATION = f"{DOMAIN}/launcher"  # Name of the launcher that made the job.
COUNTED_ANNOTATION = f"{DOMAIN}/counted"  # When the counts were written, RFC 3339.
COUNTS_ANNOTATION = f"{DOMAIN}/ledger"  # Time, restarts and failures that launchers have counted, as JSON.
# Name that all pods of one launcher share, such as the tries of a Kubernetes Job.
LAUNCHER_VARIABLE = "ANADIL_LAUNCHER"
# The pod of a pipeline's step. Source: kubeflow/pipelines 2.17, argocompiler/container.go.
POD_VARIABLE = "KFP_POD_NAME"
SAME_STEP = 3  # Failures at one step after which another start would fail there too.
# Failures of several workers within this time, with no step between, are one: those that wait for
# a dead one give up later. Source: `join_timeout` of the manifest, the longest of their limits.
TOGETHER_S = 1_800.0
UID_CHARS = 8  # Characters of a pod's uid; enough among the pods of one worker.
ContainerStart = tuple[int, str, int]  # Worker, pod, number.


@dataclass(slots=True)
class FailureRound:
    """Failures that belong together: one worker fails, the others follow."""

    began: float
    step: int | None  # Last step that was logged before.
    failures: list[ContainerFailure] = field(default_factory=list[ContainerFailure])
    workers: set[int] = field(default_factory=set[int])


class StepCounter:
    """The training steps that a log reports."""

    def __init__(self) -> None:
        self.num = 0  # Lines with a step.
        self._last: int | None = None
        self._before: int | None = None

    def add(self, step: int) -> None:
        """Note a logged step."""
        if self._last is not None and step <= self._last:
            self._before = self._last  # it started over, from a checkpoint
        self._last = step
        self.num += 1

    def before_failure(self) -> int | None:
        """Return the last step before a failure since the last call; the log may already be past it."""
        before, self._before = self._before, None
        return self._last if before is None else before


class RestartCounter:
    """Counts one job's time, restarts and failures."""

    def __init__(self) -> None:
        self.run_s = 0.0  # Time with a running worker; queueing is not in it.
        self.ended = 0  # Rounds of failures; all of them but a last one led to a restart.
        # Rounds of `ended` in which the cluster took a pod away, and no worker failed by itself.
        self.disruptions = 0
        self.round: FailureRound | None = None  # The latest that this launcher saw.
        # Last step before each round; None where it is not known, or a node was to blame.
        self._steps: list[int | None] = []
        # Worker -> pod and number of the start that was seen last.
        self._lives: dict[int, tuple[str, int]] = {}
        self._dead: dict[ContainerStart, int] = {}  # Start that has ended -> its round.
        self._start_time = ""
        self._disrupted: set[tuple[int, str]] = set()  # Worker and pod that the cluster takes away, or took.
        self._round_is_disruption = False

    @property
    def used(self) -> int:
        """Restarts that count against `cluster.restarts`."""
        return self.ended - self.disruptions

    @property
    def failing_step(self) -> int | None:
        """The step before which the last starts failed, all of them; None where they differ."""
        last = self._steps[-SAME_STEP:]
        return last[0] if len(last) == SAME_STEP and len(set(last)) == 1 else None

    def dump(self) -> str:
        """Return the counts as text for the annotation."""
        counts = {
            "run_s": round(self.run_s), "ended": self.ended, "disruptions": self.disruptions,
            "steps": self._steps[-SAME_STEP:],
            "lives": {str(index): life for index, life in self._lives.items()}, "start": self._start_time,
        }  # fmt: skip
        return json.dumps(counts, separators=(",", ":"))

    def load(self, text: str, idle_s: float) -> None:
        """Take over the counts of another launcher, written `idle_s` ago; a job that ran then has run on."""
        try:
            counts: dict[str, Any] = json.loads(text)
            run_s, self.ended = float(counts["run_s"]), int(counts["ended"])
            self._steps = [None if each is None else int(each) for each in counts["steps"]]
            self._lives = {
                int(key): (str(uid), int(number)) for key, (uid, number) in counts["lives"].items()
            }
            self._start_time = str(counts["start"])
            self.disruptions = int(counts.get("disruptions", 0))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("the counts of the launcher before cannot be read (%s); counting from now on", error)
            return
        self.run_s = run_s + max(0.0, idle_s) if run_s else 0.0

    def suspended(self) -> None:
        """Forget the pods: they were taken away, and none has failed."""
        self._lives.clear()

    def observe(
        self, workers: Sequence[Worker], start_time: str, steps: StepCounter, *, recovered: bool
    ) -> bool:
        """Count what has failed since the last look; recovered: all workers ran and logged a step since then."""
        if self._start_time and start_time != self._start_time:  # which is another after a suspension
            self.suspended()  # and resumed, between two looks
        self._start_time = start_time
        before = self.ended, len(self._dead)
        step = steps.before_failure()
        for worker in workers:
            if worker.is_disrupted:
                self._disrupted.add((worker.index, worker.uid[:UID_CHARS]))
            for life in self._ended(worker):
                if life not in self._dead:
                    self._count(worker.index, step, recovered=recovered and self.ended == before[0])
                    self._dead[life] = self.ended
            self._lives[worker.index] = (worker.uid[:UID_CHARS], worker.restarts)
        self._collect(workers)
        return (self.ended, len(self._dead)) != before

    def _ended(self, worker: Worker) -> Iterator[ContainerStart]:
        """Yield the starts of a worker that have ended, as far as its pod shows."""
        pod = worker.uid[:UID_CHARS]
        known = self._lives.get(worker.index)
        first = 0
        if known and known[0] == pod:
            first = known[1]
        elif known:
            yield worker.index, *known  # its pod was replaced
        for number in range(first, worker.restarts):
            yield worker.index, pod, number
        # A pod that leaves may belong to a suspension; if not, its successor tells.
        failed = any(not failure.previous for failure in worker.failures)
        if failed and not worker.is_leaving:
            yield worker.index, pod, worker.restarts

    def _count(self, index: int, step: int | None, *, recovered: bool) -> None:
        now = time.monotonic()
        last = self.round
        if last is None or recovered or index in last.workers or now - last.began > TOGETHER_S:
            last = self.round = FailureRound(began=now, step=step)
            self.ended += 1
            self._round_is_disruption = False
            self._steps.append(step)
        last.workers.add(index)

    def _collect(self, workers: Sequence[Worker]) -> None:
        """Save how the workers of the latest round ended: their pods may soon be gone."""
        if self.round is None:
            return
        failures = self.round.failures
        seen = {failure.life for failure in failures}
        for failure in (each for worker in workers for each in worker.failures):
            uid, _, number = failure.life.rpartition(":")
            life = (failure.index, uid[:UID_CHARS], int(number))
            if failure.life not in seen and self._dead.get(life) == self.ended:
                failures.append(failure)
        blameless = bool(failures) and all(failure.is_infrastructure for failure in failures)
        lives = {(index, pod) for (index, pod, _), turn in self._dead.items() if turn == self.ended}
        going = {(each.index, each.uid[:UID_CHARS]) for each in workers if each.is_disrupted}
        # The cluster began the round if all others were told to stop, or lost the worker that goes.
        is_disruption = bool((lives | going) & self._disrupted) and all(
            failure.is_disruption or failure.rank > 0 for failure in failures
        )
        self.disruptions += is_disruption - self._round_is_disruption
        self._round_is_disruption = is_disruption
        self._steps[-1] = None if blameless or is_disruption else self.round.step


class JobLedger:
    """The launcher that a job belongs to, and the counts of its use."""

    def __init__(self) -> None:
        # A pipeline's job has a name of its own, so every try of its step may end it.
        one_try = "pipeline" if POD_VARIABLE in os.environ else uuid.uuid4().hex
        self.launcher = os.environ.get(LAUNCHER_VARIABLE) or one_try
        self.counter = RestartCounter()
        self.is_known = False
        # True if a signal to this launcher ends the job: it made the job, or another try of its step did.
        self.is_owner = False

    def see(self, job: ApiObject) -> None:
        """Learn from the job who made it."""
        self.is_known = True
        self.is_owner = annotations(job).get(LAUNCHER_ANNOTATION) == self.launcher

    def load(self, kind: JobKind, job: ApiObject) -> float | None:
        """Continue the counts of another launcher; return seconds since it wrote them, None where there are none."""
        recorded = annotations(job)
        if COUNTS_ANNOTATION not in recorded:
            return None
        # Without a time, nothing may be charged for the time since: the job would be ended for it.
        counted = recorded.get(COUNTED_ANNOTATION)
        idle_s = (datetime.now(UTC) - parse_time(counted)).total_seconds() if counted else 0.0
        self.counter.load(recorded[COUNTS_ANNOTATION], 0.0 if kind.is_suspended(job) else idle_s)
        return idle_s

    def counts(self) -> dict[str, str]:
        """Return annotations with what the job has used so far."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {COUNTED_ANNOTATION: now, COUNTS_ANNOTATION: self.counter.dump()}

    def signature(self) -> dict[str, str]:
        """Return annotations of a job that this launcher makes and follows."""
        return {LAUNCHER_ANNOTATION: self.launcher, **self.counts()}
