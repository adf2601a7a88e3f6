"""Meters of the loop: time by cause, slow processes, throughput, cost.

The loop names each part, `with metrics.section("data"): ...`. The accounts of time and the search
for slow processes follow from that.
"""

import json
import logging
import math
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from anadil.core.format import human_seconds
from anadil.estimate import budget
from anadil.estimate.model_shape import Trains
from anadil.model.process_group import Group
from anadil.pretrain.metrics import throughput
from anadil.runtime import prometheus
from anadil.runtime.job import Job

log = logging.getLogger(__name__)

FILE = "goodput.json"
Cause = Literal[
    "init", "restore", "data", "step", "checkpoint", "validation", "wasted", "restart", "hang", "other"
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
BEAT_S = 1.0
"""Least time between two writes of the file: as much may count as `restart` after a kill. Assumption."""
MOST_MARKS = 256
"""Steps whose time is stored; between them it is interpolated. Beyond, older ones are thinned out."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Goodput:
    """Accounts of one run; safe to use from the loop and from a watchdog's thread."""

    def __init__(
        self, work: Path, *, writes: bool = True, age_s: float | None = None,
        now: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Continue the accounts of earlier starts; until its first step a start counts as `init`.

        One process writes the file. `age_s` is the time since this process began; None asks the system.
        """
        self._path = work / FILE
        self._writes = writes
        self._now, self._wall = now, wall
        self._lock = threading.Lock()
        self.seconds: dict[Cause, float] = dict.fromkeys(CAUSES, 0.0)
        self.counts: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self.starts = 1
        self._marks: list[tuple[int, float]] = [(0, 0.0)]
        self._open: list[Cause] = []
        self._idle: Cause = "init"
        self._since = self._written = now()
        age_s = process_age_s() if age_s is None else age_s
        gap = self._read() if self._path.is_file() else None
        if gap is not None:
            self.starts += 1
            if age_s > gap:
                age_s = 0.0  # this very process wrote the file, in an earlier run of the stage
            self.seconds["restart"] += gap - age_s
        self.seconds["init"] += age_s
        self.heartbeat(force=True)

    @contextmanager
    def spend(self, cause: Cause) -> Iterator[None]:
        """Count the block's time under a cause; blocks inside it take theirs out."""
        self._account()
        if cause == "step":
            # After the first step time without a name is no start any more.
            self._idle = "other"
        self._open.append(cause)
        try:
            yield
        finally:
            self._account()
            self.counts[cause] += 1
            self._open.pop()
            self.heartbeat(force=cause == "checkpoint")

    def step_done(self, step: int) -> None:
        """Note that optimizer step `step` (from 1) is done: its time counts, until it is done again."""
        self._account()
        with self._lock:
            self._mark(step)
        self.heartbeat()

    def resume_after(self, step: int) -> None:
        """Count the time of steps after `step` as wasted: at each start, also with 0, and at each roll-back."""
        self._account()
        with self._lock:
            counted = self._spent_until(step)
            # Later steps are done again, so their first time was for nothing.
            self.seconds["wasted"] += self.seconds["step"] - counted
            self.seconds["step"] = counted
            del self._marks[bisect_right(self._marks, (step, math.inf)) :]
            self._mark(step)
        self.heartbeat(force=True)

    def hung(self) -> None:
        """Count the open block as a hang, and write; for a watchdog before it ends the process."""
        with self._lock:
            now = self._now()
            self.seconds["hang"] += now - self._since
            self.counts["hang"] += 1
            self._since = now
        self.heartbeat(force=True)

    def heartbeat(self, *, force: bool = False) -> None:
        """Write the accounts, if that is due."""
        if not self._writes or not (force or self._now() - self._written >= BEAT_S):
            return
        self._account()
        with self._lock:
            self._written = self._now()
            content = {
                "seconds": self.seconds,
                "counts": self.counts,
                "starts": self.starts,
                "marks": self._marks,
                "beat": {"boot": _boot_id(), "monotonic": self._written, "wall": self._wall()},
            }
            draft = self._path.with_suffix(".draft")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
                # Replaced whole: a kill leaves the accounts of a second before.
                draft.replace(self._path)
            except OSError as error:
                log.warning("%s cannot be written (%s); a later start will not count this one", draft, error)
                self._writes = False

    @property
    def total_s(self) -> float:
        """Seconds from the first start until now."""
        self._account()
        return sum(self.seconds.values())

    @property
    def running_s(self) -> float:
        """The same without the time between starts, in which nodes may have been given back."""
        return self.total_s - self.seconds["restart"]

    @property
    def steps(self) -> int:
        """Optimizer steps that count."""
        return self._marks[-1][0]

    def shares(self) -> dict[Cause, float]:
        """Share of each cause; they add up to 1."""
        total = self.total_s
        if not total:
            return {cause: float(cause == self._idle) for cause in CAUSES}
        return {cause: self.seconds[cause] / total for cause in CAUSES}

    def summary(self) -> dict[str, Any]:
        """Seconds and share of each cause, for `training.json`."""
        shares = self.shares()
        return {
            "goodput": round(shares["step"], 6),
            "seconds": round(sum(self.seconds.values()), 3),
            "starts": self.starts,
            "causes": {
                cause: {"seconds": round(self.seconds[cause], 3), "share": round(share, 6)}
                for cause, share in shares.items()
            },
        }

    def _account(self) -> None:
        """Add the time since the last call to the cause that was open."""
        with self._lock:
            now = self._now()
            self.seconds[self._open[-1] if self._open else self._idle] += now - self._since
            self._since = now

    def _mark(self, step: int) -> None:
        if self._marks[-1][0] == step:
            self._marks.pop()
        self._marks.append((step, self.seconds["step"]))
        if len(self._marks) > MOST_MARKS:
            half = MOST_MARKS // 2
            # Older steps are asked for less: a run goes back to a recent checkpoint.
            self._marks[1:half] = self._marks[2:half:2]

    def _spent_until(self, step: int) -> float:
        """Seconds of the first `step` steps; those that no earlier start has counted took none."""
        at = bisect_right(self._marks, (step, math.inf)) - 1
        done, spent = self._marks[max(at, 0)]
        if at + 1 >= len(self._marks):
            return self.seconds["step"] if step > done else spent
        later, more = self._marks[at + 1]
        return spent + (more - spent) * (step - done) / (later - done)

    def _read(self) -> float | None:
        """Read the accounts of the file; return the seconds since they were written."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            seconds: dict[Cause, float] = {c: float(content["seconds"].get(c, 0)) for c in CAUSES}
            counts: dict[Cause, int] = {c: int(content["counts"].get(c, 0)) for c in CAUSES}
            marks = [(int(step), float(spent)) for step, spent in content["marks"]]
            starts, last = int(content["starts"]), content["beat"]
            # The monotonic clock begins anew with each boot.
            same_boot = last["boot"] == _boot_id() != ""
            gap = self._now() - float(last["monotonic"]) if same_boot else -1.0
            if gap < 0:
                gap = max(0.0, self._wall() - float(last["wall"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is damaged (%s); time is counted from this start on", self._path, error)
            return None
        self.seconds, self.counts, self.starts = seconds, counts, starts
        self._marks = marks or [(0, 0.0)]
        return gap


def process_age_s() -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    try:
        # Source: Linux, proc_pid_stat(5), field 22, `starttime`.
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


MIN_SHARE = 0.005
"""Least share of the time for which a cause is named at the end of a run."""
SECTION_OF: Mapping[Cause, throughput.Section] = {"data": "data", "step": "compute", "checkpoint": "save"}
"""Own work of a process, by the cause that its time is counted under."""


@dataclass(slots=True, kw_only=True)
class Metrics:
    """All metrics of one process."""

    goodput: Goodput
    stragglers: throughput.Stragglers
    budget: throughput.RunBudget
    every: int
    """`pretrain.checkpoint_every`."""
    nodes: int
    rates: throughput.Throughput | None = None
    """From `rates_of`, once there is a model; before the first logged line."""

    @contextmanager
    def section(self, cause: Cause) -> Iterator[None]:
        """Count the block under a cause, and as own work where it is some; blocks may be nested."""
        with self.goodput.spend(cause), self.stragglers.section(SECTION_OF.get(cause)):
            yield

    def resume_after(self, step: int) -> None:
        """Note that training resumes after `step`: at each start, also with 0, and at each roll-back."""
        self.goodput.resume_after(step)
        # Encoding and restoring were no steps.
        self.stragglers.forget()

    def step_done(self, step: int) -> None:
        """Note that optimizer step `step` (from 1) is done."""
        self.stragglers.step_done()
        self.goodput.step_done(step)

    def figures(self, tokens: float, seconds: float, trains: Trains) -> dict[str, float]:
        """Measure the logged line of `tokens` targets of all devices; a collective, since processes compare themselves."""
        assert self.rates is not None
        # The comparison is a collective: its wait is nobody's own work.
        with self.goodput.spend("other"), self.stragglers.section(None):
            compared = self.stragglers.compare()
        # The slowest process decides when a step begins.
        waits = [row[throughput.SECTIONS.index("data")] for row in compared.rows]
        line = {
            **self.rates.figures(tokens, seconds, trains),
            "goodput": round(self.goodput.shares()["step"], 5),
            "data_wait_s": round(max(waits), 6),
        }
        # One process has nobody to be slower than.
        if len(waits) > 1:
            line["straggler_ratio"] = round(compared.ratio, 4)
        saves = self.goodput.counts["checkpoint"]
        if saves:
            line["checkpoint_stall_s"] = round(self.goodput.seconds["checkpoint"] / saves, 4)
        cost = self.budget.cost(self.goodput.running_s)
        if cost is not None:
            line["cost_usd"] = round(cost, 2)
        return line

    def time_shares(self) -> dict[str, float]:
        """Share of each cause, for MLflow and Prometheus."""
        return {f"time_share/{cause}": round(share, 6) for cause, share in self.goodput.shares().items()}

    def show_own(self, peak_memory_bytes: int | None) -> None:
        """Set the gauges of this process; every process calls it at a logged step."""
        times = self.stragglers.times()
        values = {"own_work_s": sum(times.values()), "own_data_wait_s": times["data"]}
        if peak_memory_bytes is not None:
            values["peak_memory_bytes"] = peak_memory_bytes
        prometheus.set_own("pretrain", values)

    def summary(self, steps: int) -> dict[str, Any]:
        """Summarise a run of `steps` for `training.json`: time by cause, cost, checkpoint interval."""
        summary: dict[str, Any] = {"time": self.goodput.summary()}
        shares = sorted(self.goodput.shares().items(), key=lambda one: -one[1])
        spent = ", ".join(f"{100 * share:.0f} % {cause}" for cause, share in shares if share >= MIN_SHARE)
        log.info("time of all %s starts: %s", self.goodput.starts, spent)
        cost = self.budget.cost(self.goodput.running_s)
        if cost is not None:
            summary["cost_usd"] = round(cost, 2)
        interval = compare_interval(self.goodput, self.every, self.nodes)
        if interval is not None:
            summary["checkpoint_interval"] = interval
            # A best interval longer than the run would be no advice.
            if interval["best_every"] <= steps:
                log.info(
                    "checkpoints every %s steps (%s) stall %.2g s each and waste %.2g %% with a failure every %s "
                    "(assumed); every %s steps (%s) would waste least, %.2g %%",
                    f"{self.every:,}", human_seconds(interval["seconds"]), interval["stall_s"],
                    100 * interval["waste"], human_seconds(interval["mtbf_s"]), f"{interval['best_every']:,}",
                    human_seconds(interval["best_seconds"]), 100 * interval["best_waste"],
                )  # fmt: skip
        return summary

    def close(self) -> None:
        """Write the accounts."""
        self.goodput.heartbeat(force=True)


def compare_interval(goodput: Goodput, every: int, nodes: int) -> dict[str, float] | None:
    """Compare `pretrain.checkpoint_every` with the interval of Young and Daly; None before the first checkpoint.

    `waste` is the expected share of the time that stalls and lost work take. Source: anadil.estimate.budget.
    """
    saves, steps = goodput.counts["checkpoint"], goodput.steps
    step_s = (goodput.seconds["step"] + goodput.seconds["data"]) / max(steps, 1)
    stall_s = goodput.seconds["checkpoint"] / max(saves, 1)
    if not (saves and steps and step_s and stall_s):
        return None
    # A run fails when any of its nodes does.
    mtbf_s, seconds = budget.NODE_MTBF_S / nodes, every * step_s
    best = budget.checkpoint_interval(stall_s, mtbf_s)
    return {
        "seconds": round(seconds, 3),
        "stall_s": round(stall_s, 4),
        "mtbf_s": mtbf_s,
        "waste": round(budget.waste(seconds, stall_s, mtbf_s), 6),
        "best_every": max(1, round(best / step_s)),
        "best_seconds": round(best, 1),
        "best_waste": round(budget.waste(best, stall_s, mtbf_s), 6),
        "expected_goodput": round(budget.effective_training_time_ratio(seconds, stall_s, mtbf_s), 6),
    }


def metrics_of(job: Job, group: Group, device: torch.device) -> Metrics:
    """Make the metrics of a run; its work directory keeps the accounts."""
    settings, cluster = job.recipe.pretrain, job.recipe.cluster
    return Metrics(
        goodput=Goodput(job.work, writes=group.is_first),
        stragglers=throughput.Stragglers(group, settings.faults.straggler_ratio, device),
        budget=throughput.recipe_budget(settings.faults, cluster),
        every=settings.checkpoint_every,
        nodes=cluster.nodes,
    )
