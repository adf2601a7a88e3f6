"""Stragglers: the process that keeps the others waiting, and the part of its work.

Processes that train together finish their steps together, so the time of a step does not show a slow one.
The time of a process's own work does, measured before it waits for others: data, compute, save. The host
does not see how fast its GPU computes, and a GPU that waits in a collective looks busy. So on GPUs a small
fixed product is timed too, and stands for the device's compute. On CPUs that share a model, collectives
lie within the passes and cannot be told from computing: there only the rest of the step is compared.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median_low
from typing import Any, Literal, get_args

import torch
from torch import distributed as dist

from anadil.core.format import human_seconds
from anadil.model.process_group import Group

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
    """Times this process's own work, and compares it with that of the others."""

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

    Args:
        rows: Of each process: seconds per step by `SECTIONS`, then of compute with its waits, then its
            device's time for the probe (0 for none).
        ratio: `pretrain.faults.straggler_ratio`.
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
