"""Meters of the loop: time by cause, slow processes, throughput, cost.

The loop names what it does, `with metrics.section("data"): ...`; from that follow the accounts of
time and the search for slow processes.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from anadil.model.process_group import Group
from anadil.plan.model_shape import Trains
from anadil.pretrain.metrics.checkpoint_interval import checkpoint_interval_of
from anadil.pretrain.metrics.goodput import Cause, Goodput
from anadil.pretrain.metrics.stragglers import SECTIONS, Section, Stragglers
from anadil.pretrain.metrics.tensorboard import TensorBoardWriter
from anadil.pretrain.metrics.throughput import RunBudget, Throughput, recipe_budget
from anadil.runtime import prometheus
from anadil.runtime.job import Job

LEAST_TOLD = 0.005
"""Share of the time of a cause that is named at the end of a run."""

log = logging.getLogger(__name__)

SECTION_OF: Mapping[Cause, Section] = {"data": "data", "step": "compute", "checkpoint": "save"}
"""Own work of a process, by what its time is counted under."""


@dataclass(slots=True, kw_only=True)
class Metrics:
    """All metrics of one process."""

    goodput: Goodput
    stragglers: Stragglers
    budget: RunBudget
    events: TensorBoardWriter
    every: int
    """`pretrain.checkpoint_every`."""
    nodes: int
    rates: Throughput | None = None
    """From `rates_of`, once there is a model; before the first logged line."""

    @contextmanager
    def section(self, cause: Cause) -> Iterator[None]:
        """Count the block under a cause, and as own work where it is some; blocks may lie in others."""
        own = SECTION_OF.get(cause)
        with self.goodput.spend(cause), self.stragglers.section(own):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside a section: this process waits for others, which is no work of its own."""
        with self.stragglers.section(None):
            yield

    def resumed(self, step: int) -> None:
        """Training resumes after `step`: at each start, also with 0, and at each roll-back."""
        self.goodput.resumed(step)
        # Encoding and restoring were no steps.
        self.stragglers.forget()
        self.events.begin(step)

    def step_done(self, step: int) -> None:
        """Optimizer step `step` (from 1) is done."""
        self.stragglers.step_done()
        self.goodput.step_done(step)

    def figures(self, tokens: float, seconds: float, trains: Trains) -> dict[str, float]:
        """For the logged line; every process calls this at the same step, since they compare themselves.

        Args:
            tokens: Target tokens of all devices since the line before.
            seconds: In which they were trained on.
            trains: What the phase trains.
        """
        assert self.rates is not None
        # The comparison is a collective: its wait is nobody's own work.
        with self.goodput.spend("other"), self.stragglers.section(None):
            compared = self.stragglers.compare()
        # The slowest process decides when a step begins.
        waits = [row[SECTIONS.index("data")] for row in compared.rows]
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
        """For MLflow and the exporter beside the logged line: share of each cause."""
        return {f"time_share/{cause}": round(share, 6) for cause, share in self.goodput.shares().items()}

    def show_own(self, peak_memory_bytes: int | None) -> None:
        """Tell the exporter what is this process's own; every process calls this at a logged step."""
        own = self.stragglers.own()
        values = {"own_work_s": sum(own.values()), "own_data_wait_s": own["data"]}
        if peak_memory_bytes is not None:
            values["peak_memory_bytes"] = peak_memory_bytes
        prometheus.set_own("pretrain", values)

    def budget_reached(self) -> str | None:
        """Text of `BudgetReached` by this process's clock; let the first process's word count."""
        return self.budget.reached(self.goodput.running_s)

    def summary(self, steps: int) -> dict[str, Any]:
        """For `training.json`: time by cause, cost, and the interval between checkpoints beside the best one.

        Args:
            steps: Of the whole run; an interval beyond them is no advice for the log.
        """
        summary: dict[str, Any] = {"time": self.goodput.summary()}
        shares = sorted(self.goodput.shares().items(), key=lambda one: -one[1])
        spent = ", ".join(f"{100 * share:.0f} % {cause}" for cause, share in shares if share >= LEAST_TOLD)
        log.info("time of all %s starts: %s", self.goodput.starts, spent)
        cost = self.budget.cost(self.goodput.running_s)
        if cost is not None:
            summary["cost_usd"] = round(cost, 2)
        interval = checkpoint_interval_of(self.goodput, self.every, self.nodes)
        if interval is not None:
            # An interval longer than the run would be no advice.
            if interval.best_every <= steps:
                log.info("%s", interval.sentence())
            summary["checkpoint_interval"] = {
                "seconds": round(interval.seconds, 3),
                "stall_s": round(interval.stall_s, 4),
                "mtbf_s": interval.mtbf_s,
                "waste": round(interval.waste, 6),
                "best_every": interval.best_every,
                "best_seconds": round(interval.best_seconds, 1),
                "best_waste": round(interval.best_waste, 6),
                "expected_goodput": round(interval.expected_goodput, 6),
            }
        return summary

    def close(self) -> None:
        """The run ends: write what is still to be written."""
        self.goodput.heartbeat(force=True)
        self.events.close()


def metrics_of(job: Job, group: Group, device: torch.device) -> Metrics:
    """The metrics of a run; make them first thing, since blocks of time can be named from here on.

    Args:
        job: Its work directory keeps the accounts.
        group: All processes.
        device: Of this process.

    Raises:
        PreflightError: There is a budget in money, and no price.
    """
    settings, cluster = job.recipe.pretrain, job.recipe.cluster
    return Metrics(
        goodput=Goodput(job.work, writes=group.is_first),
        stragglers=Stragglers(group, settings.faults.straggler_ratio, device),
        budget=recipe_budget(settings.faults, cluster),
        events=TensorBoardWriter(job.work, writes=group.is_first),
        every=settings.checkpoint_every,
        nodes=cluster.nodes,
    )
