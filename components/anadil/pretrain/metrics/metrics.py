"""Meters of the loop: time by cause, slow processes, throughput, cost.

The loop names each part, `with metrics.section("data"): ...`. The accounts of time and the search
for slow processes follow from that.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from anadil.core.format import human_seconds
from anadil.model.process_group import Group
from anadil.plan import budget
from anadil.plan.model_shape import Trains
from anadil.pretrain.metrics.goodput import Cause, Goodput
from anadil.pretrain.metrics.stragglers import SECTIONS, Section, Stragglers
from anadil.pretrain.metrics.throughput import RunBudget, Throughput, recipe_budget
from anadil.runtime import prometheus
from anadil.runtime.job import Job

MIN_SHARE = 0.005
"""Least share of the time for which a cause is named at the end of a run."""
SECTION_OF: Mapping[Cause, Section] = {"data": "data", "step": "compute", "checkpoint": "save"}
"""Own work of a process, by the cause that its time is counted under."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Metrics:
    """All metrics of one process."""

    goodput: Goodput
    stragglers: Stragglers
    budget: RunBudget
    every: int
    """`pretrain.checkpoint_every`."""
    nodes: int
    rates: Throughput | None = None
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

    `waste` is the expected share of the time that stalls and lost work take. Source: anadil.plan.budget.
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
        stragglers=Stragglers(group, settings.faults.straggler_ratio, device),
        budget=recipe_budget(settings.faults, cluster),
        every=settings.checkpoint_every,
        nodes=cluster.nodes,
    )
