"""Usage of a job: time, restarts, and the step at which it fails each time.

The training operator does not count pods that were replaced, and checks its deadline only when
something happens; so the launcher counts. The counts live in an annotation of the job, so that
a launcher that takes over keeps counting.

Source: kubeflow/trainer v1.9.4, pkg/util/fake_workqueue.go, pkg/controller.v1/common/job.go.
"""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from anadil.launch.kubernetes.api.pods import ContainerFailure, Worker

log = logging.getLogger(__name__)

SAME_STEP = 3
"""Failures at one step after which another start would fail there too."""
TOGETHER_S = 1_800.0
"""Failures of several workers within this time, with no step between, are one: those that wait for
a dead one give up later. Source: `join_timeout` of the manifest, the longest of their limits."""
UID_CHARS = 8
"""Characters of a pod's uid; enough among the pods of one worker."""
ContainerStart = tuple[int, str, int]
"""One start of a container: worker, pod, number."""


@dataclass(slots=True)
class FailureRound:
    """Failures that belong together: one worker fails, the others follow."""

    began: float
    step: int | None
    """Last step that was logged before."""
    failures: list[ContainerFailure] = field(default_factory=list[ContainerFailure])
    workers: set[int] = field(default_factory=set[int])


class RestartCounter:
    """Counts one job's time, restarts and failures."""

    def __init__(self) -> None:
        self.run_s = 0.0
        """Time with a running worker; queueing is not in it."""
        self.ended = 0
        """Rounds of failures; all of them but a last one led to a restart."""
        self.disruptions = 0
        """Those of `ended` in which the cluster took a pod away, and no worker failed by itself."""
        self.round: FailureRound | None = None
        """The latest that this launcher saw."""
        self._steps: list[int | None] = []
        """Last step before each round; None where it is not known, or a node was to blame."""
        self._lives: dict[int, tuple[str, int]] = {}
        """Worker -> pod and number of the start that was seen last."""
        self._dead: dict[ContainerStart, int] = {}
        """Start that has ended -> its round."""
        self._start_time = ""
        self._disrupted: set[tuple[int, str]] = set()
        """Worker and pod that the cluster takes away, or took."""
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
        """As text for the annotation."""
        counts = {
            "run_s": round(self.run_s),
            "ended": self.ended,
            "disruptions": self.disruptions,
            "steps": self._steps[-SAME_STEP:],
            "lives": {str(index): life for index, life in self._lives.items()},
            "start": self._start_time,
        }
        return json.dumps(counts, separators=(",", ":"))

    def load(self, text: str, idle_s: float) -> None:
        """Take over what another launcher counted.

        Args:
            text: The annotation.
            idle_s: Since it was written; a job that ran then has run on.
        """
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
        """Pods that are gone now were taken away; none has failed."""
        self._lives.clear()

    def observe(
        self, workers: Sequence[Worker], start_time: str, steps: "StepCounter", *, recovered: bool
    ) -> bool:
        """Count what has failed since the last look; whether anything has.

        Args:
            workers: The workers as they are.
            start_time: `status.startTime`, which is another after a suspension.
            steps: That the log has told of.
            recovered: Whether all workers ran and logged a step since the last failure.
        """
        if self._start_time and start_time != self._start_time:
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
        """Starts of a worker that have ended, as far as can be told from its pod."""
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
        """Keep how the workers of the latest round ended: their pods may soon be gone."""
        if self.round is None:
            return
        kept = {failure.life for failure in self.round.failures}
        for failure in (each for worker in workers for each in worker.failures):
            uid, _, number = failure.life.rpartition(":")
            life = (failure.index, uid[:UID_CHARS], int(number))
            if failure.life not in kept and self._dead.get(life) == self.ended:
                self.round.failures.append(failure)
        failures = self.round.failures
        blameless = bool(failures) and all(failure.is_infrastructure for failure in failures)
        going = {(each.index, each.uid[:UID_CHARS]) for each in workers if each.is_disrupted}
        is_disruption = self._is_disruption(failures, going)
        self.disruptions += is_disruption - self._round_is_disruption
        self._round_is_disruption = is_disruption
        self._steps[-1] = None if blameless or is_disruption else self.round.step

    def _is_disruption(self, failures: Sequence[ContainerFailure], going: set[tuple[int, str]]) -> bool:
        """True if the cluster began the latest round: all others were told to stop, or lost the one that goes."""
        lives = {(index, pod) for (index, pod, _), turn in self._dead.items() if turn == self.ended}
        return bool((lives | going) & self._disrupted) and all(
            failure.is_disruption or failure.rank > 0 for failure in failures
        )


class StepCounter:
    """The training steps that a log tells of."""

    def __init__(self) -> None:
        self.num = 0
        """Lines with a step."""
        self._last: int | None = None
        self._before: int | None = None

    def add(self, step: int) -> None:
        """A step was logged."""
        if self._last is not None and step <= self._last:
            self._before = self._last  # it started over, from a checkpoint
        self._last = step
        self.num += 1

    def before_failure(self) -> int | None:
        """The last step before a failure since the last call, of which the log may already be past."""
        before, self._before = self._before, None
        return self._last if before is None else before
