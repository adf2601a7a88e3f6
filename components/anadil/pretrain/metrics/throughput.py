"""Throughput, share of the devices' peak, cost, and the budget of a run."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median_low
from typing import Any, Literal, get_args

import torch
from torch import distributed as dist

from anadil.core.errors import PreflightError
from anadil.core.format import human_seconds
from anadil.estimate.instances import OTHER_FORMS, machines
from anadil.estimate.model_shape import Shape, Trains, shape_from
from anadil.model.process_group import Group
from anadil.recipe.cluster import Cluster
from anadil.recipe.pretrain import Faults

log = logging.getLogger(__name__)

Section = Literal["data", "compute", "save"]
SECTIONS: tuple[Section, ...] = get_args(Section)
WINDOW = 20
"""Last steps that are compared."""
FEWEST = 10
"""Steps before anybody is named: the first ones are not alike."""
LEAST_EXCESS_S = 0.005
"""Time per step below which a difference is noise. Assumption."""
IN_A_ROW = 3
"""Comparisons after which a process on CPUs is named: they are shared, and slow down one process after another."""
AGAIN_S = 3_600.0
"""Until the same process is named for the same section again. Assumption."""
PROBE_WIDTH, PROBE_PRODUCTS = 2_048, 64
"""Products of bf16 matrices that a GPU is timed with: 1.1 TFLOP, some 2 ms of an H100, in 24 MiB."""
REMEDIES: Mapping[Section, str] = {
    "data": "check its node's disk and CPUs",
    "compute": "check the clock, temperature and errors of its device (nvidia-smi -q)",
    "save": "check its node's disk and network",
}


Case = tuple[int, Section]
"""Rank of a slow process, and the section in which most of the difference lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerComparison:
    """Own work of every process, the same on each of them."""

    rows: tuple[tuple[float, ...], ...]
    """Seconds per step of each process, by `SECTIONS`."""
    slow: Mapping[Case, str]
    """Slow processes, each with a sentence."""

    @property
    def ratio(self) -> float:
        """Own work of the slowest process over the median."""
        totals = [sum(row) for row in self.rows]
        middle = median_low(totals)
        return max(totals) / middle if middle else 1.0


class Stragglers:
    """Times this process's own work, and compares it with that of the others.

    Processes that train together finish their steps together, so the time of a step does not show a slow one. The time of
    its own work does, before it waits for others. The host does not see how fast its GPU computes, so on GPUs a small fixed
    product is timed too. On CPUs that share a model, collectives lie within the passes: there only the rest is compared.
    """

    def __init__(
        self, group: Group, ratio: float, device: torch.device, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Measure for `pretrain.faults.straggler_ratio`."""
        self.group = group
        self.ratio = ratio
        self._now = now
        self._steps: deque[tuple[float, ...]] = deque(maxlen=WINDOW)
        self._spent = dict.fromkeys(SECTIONS, 0.0)
        self._whole = 0.0
        self._open: list[Section | None] = []
        self._since = now()
        self._in_a_row: dict[Case, int] = {}
        self._named_at: dict[Case, float] = {}
        self._enough = 1 if device.type == "cuda" else IN_A_ROW
        # Allocated at the start, so that a full device still has the room.
        self._probe = _Probe(device) if device.type == "cuda" and group.size > 1 else None

    @contextmanager
    def section(self, name: Section | None) -> Iterator[None]:
        """Count the block's time without that of inner blocks; None waits for others, which does not count."""
        self._account()
        self._open.append(name)
        began = self._since
        try:
            yield
        finally:
            self._account()
            self._open.pop()
            if name == "compute":
                self._whole += self._since - began

    def step_done(self) -> None:
        """Close the accounts of an optimizer step."""
        self._account()
        self._steps.append((*self._spent.values(), self._whole))
        self._spent, self._whole = dict.fromkeys(SECTIONS, 0.0), 0.0

    def forget(self) -> None:
        """Start over: the time until now was no step, such as encoding the corpus."""
        self.step_done()
        self._steps.clear()

    def times(self) -> dict[Section, float]:
        """Seconds per step of this process in each section, over the last steps."""
        return dict(zip(SECTIONS, self._typical(), strict=False))

    def compare(self) -> StragglerComparison:
        """Compare the processes; all of them call this, at the same step. The first one warns of new cases."""
        # The probe runs here, at a logged step, where the device is idle for a moment anyway.
        rows = self._gathered([*self._typical(), self._probe.seconds() if self._probe else 0.0])
        slow = slow_ranks(rows, self.ratio) if len(self._steps) >= FEWEST else {}
        self._in_a_row = {case: self._in_a_row.get(case, 0) + 1 for case in slow}
        for case, sentence in slow.items() if self.group.is_first else ():
            now = self._now()
            # A slow device of its own is news at once; on CPUs, which are shared, when it stays slow.
            if self._in_a_row[case] < self._enough or now < self._named_at.get(case, -AGAIN_S) + AGAIN_S:
                continue
            self._named_at[case] = now
            log.warning("%s", sentence)
        return StragglerComparison(rows=tuple(_scaled(rows)), slow=slow)

    def _gathered(self, mine: Sequence[float]) -> list[tuple[float, ...]]:
        if self.group.host is None:
            return [tuple(mine)]
        sent = torch.tensor(mine, dtype=torch.float64)
        rows = [torch.empty_like(sent) for _ in range(self.group.size)]
        dist.all_gather(rows, sent, group=self.group.host)
        return [tuple(row.tolist()) for row in rows]

    def _typical(self) -> list[float]:
        """Seconds per step by `SECTIONS`, then of compute with its waits."""
        if not self._steps:
            return [0.0] * (len(SECTIONS) + 1)
        # Medians, which one uneven step does not move. Most steps save nothing, so saves have a mean.
        return [
            mean(column) if i == SECTIONS.index("save") else median_low(column)
            for i, column in enumerate(zip(*self._steps, strict=True))
        ]

    def _account(self) -> None:
        now = self._now()
        if self._open and (name := self._open[-1]) is not None:
            self._spent[name] += now - self._since
        self._since = now


def slow_ranks(rows: Sequence[Sequence[float]], ratio: float) -> dict[Case, str]:
    """List the processes whose own work takes more than `ratio` times the median.

    A row has a process's seconds per step by `SECTIONS`, then of compute with its waits, then of the probe (0 for none).
    """
    scaled = _scaled(rows)
    totals = [sum(row) for row in scaled]
    # The lower median: of two processes, one can be slow.
    middle = median_low(totals)
    medians = [median_low(column) for column in zip(*scaled, strict=True)]
    slow = {}
    for rank, (row, total) in enumerate(zip(scaled, totals, strict=True)):
        if total <= ratio * middle or total - middle < LEAST_EXCESS_S:
            continue
        # The section with the largest excess, not the longest one: compute is always long.
        at = max(range(len(SECTIONS)), key=lambda i: row[i] - medians[i])
        times = total / middle if middle else float("inf")
        slow[rank, SECTIONS[at]] = (
            f"process {rank} takes {times:.2f} x the median of the processes for its own work: {SECTIONS[at]} "
            f"{human_seconds(row[at])} a step, median {human_seconds(medians[at])}; {REMEDIES[SECTIONS[at]]}"
        )
    return slow


def _scaled(rows: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Rows by `SECTIONS`; where devices were probed, compute is the median's, scaled by the probe's time.

    The time that a host took longer than the others to launch its device's work is added.
    """
    at, whole, probe = SECTIONS.index("compute"), len(SECTIONS), len(SECTIONS) + 1
    if not all(row[probe] for row in rows):
        return [tuple(row[:whole]) for row in rows]
    host, step, product = (median_low([row[i] for row in rows]) for i in (at, whole, probe))
    return [
        (*row[:at], step * row[probe] / product + max(0.0, row[at] - host), *row[at + 1 : whole])
        for row in rows
    ]


class _Probe:
    """A fixed product on a GPU. Written from torch 2.13's documentation; no test has a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.matrix = torch.ones(PROBE_WIDTH, PROBE_WIDTH, dtype=torch.bfloat16, device=device)
        self.product = torch.empty_like(self.matrix)
        self.device = device

    def seconds(self) -> float:
        """Time of the products on an idle device."""
        # Work of the step that is still queued would count as the probe's.
        torch.cuda.synchronize(self.device)
        event: Any = torch.cuda.Event  # torch leaves it untyped
        begin, end = event(enable_timing=True), event(enable_timing=True)
        torch.mm(self.matrix, self.matrix, out=self.product)  # wakes the device up
        begin.record()
        for _ in range(PROBE_PRODUCTS):
            torch.mm(self.matrix, self.matrix, out=self.product)
        end.record()
        torch.cuda.synchronize(self.device)
        return float(begin.elapsed_time(end)) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Turns tokens and seconds into rates; the same on every process."""

    shape: Shape
    """Sizes of the model that is trained, with its own vocabulary."""
    context: int
    """Tokens of a sequence."""
    devices: int
    peak_flops: float | None
    """Dense bf16 peak of one device, whatever the precision; None where it is not known, as on a CPU."""

    def figures(self, tokens: float, seconds: float, trains: Trains) -> dict[str, float]:
        """Rates of a part of training that took `seconds` for `tokens` targets of all devices."""
        rate = tokens / max(seconds, 1e-9)
        # Per device too: it compares runs of different sizes.
        each = rate / self.devices
        rates = {"tokens_per_s": round(rate, 1), "tokens_per_s_per_device": round(each, 1)}
        if self.peak_flops:
            # 6 N + 12 L h S, as planned, so that measured and planned MFU mean the same. Source: model_shape.
            flops = self.shape.flops_per_token(self.context, trains)
            rates["mfu"] = round(each * flops / self.peak_flops, 5)
        return rates


def rates_of(config: Any, *, context: int, devices: int, device: torch.device) -> Throughput:
    """Make the rates of a model from its `config` after its vocabulary was fitted."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = peak_of(name) if name else None
    if name and peak is None:
        log.info("%s is not in the table of machines, so MFU is not reported", name)
    shape = shape_from(config.to_dict(), config.name_or_path or "model")
    return Throughput(shape=shape, context=context, devices=devices, peak_flops=peak)


def peak_of(name: str) -> float | None:
    """Dense bf16 peak of a GPU by its driver's name, such as `NVIDIA H100 80GB HBM3`; None for an unknown one.

    Source: anadil.plan, instances.yaml: data sheets.
    """
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    # A PCIe card of the same name has another peak. No MFU is better than a wrong one.
    if OTHER_FORMS.search(name.upper()):
        return None
    return next((each.flops_bf16 for each in machines() if each.device.split()[0] in words), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """Hours and money that a run may take."""

    hours: float | None
    usd: float | None
    usd_per_hour: float | None
    """On-demand price of all nodes together; None where it is not known."""

    def cost(self, seconds: float) -> float | None:
        """USD of the nodes for some seconds; None where the price is not known."""
        return None if self.usd_per_hour is None else self.usd_per_hour * seconds / 3600

    def reached(self, seconds: float) -> str | None:
        """Text of `BudgetReached` after `seconds` on the nodes, over all starts; None before the budget's end."""
        cost = self.cost(seconds)
        # Hours first: they are measured, money is a price list's.
        if self.hours is not None and seconds >= self.hours * 3600:
            key, spent, budget = "hours", human_seconds(seconds), f"{self.hours:g} hours"
        elif self.usd is not None and cost is not None and cost >= self.usd:
            key, spent, budget = "usd", f"{cost:,.2f} USD", f"{self.usd:,g} USD"
        else:
            return None
        return (
            f"the budget is used up: {spent} of {budget}; training is saved, and the same command resumes "
            f"from there with a larger pretrain.faults.budget_{key}"
        )


def recipe_budget(faults: Faults, cluster: Cluster) -> RunBudget:
    """Make the recipe's budget, with the on-demand price of its nodes."""
    price = usd_per_hour(cluster)
    if faults.budget_usd is not None and price is None:
        raise PreflightError(
            f"pretrain.faults.budget_usd is {faults.budget_usd:g}, but the price of cluster.instance "
            f"({cluster.instance or 'not set'}) is not known; set cluster.instance to a type that "
            "`anadil plan` prices, or set pretrain.faults.budget_hours instead"
        )
    return RunBudget(hours=faults.budget_hours, usd=faults.budget_usd, usd_per_hour=price)


def usd_per_hour(cluster: Cluster) -> float | None:
    """On-demand price of all nodes of a run; None for an unknown one. Source: instances.yaml, which dates each."""
    # SageMaker's names are EC2's behind `ml.`.
    prices = {each.name: each.on_demand for each in machines()}
    price = prices.get((cluster.instance or "").removeprefix("ml."))
    return None if price is None else price * cluster.nodes
