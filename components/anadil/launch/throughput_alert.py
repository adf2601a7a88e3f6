"""Detect from the lines of its log that training has become slow."""

import re
import time
from collections import deque
from contextlib import suppress
from statistics import median

from anadil.launch.backend import log_fields

MEDIAN_STEPS = 20  # Logged steps whose median is what the job can do.
SLOW_FRACTION = 0.7  # A step below this share of the median is slow.
SLOW_STEPS = 3  # Slow steps after which it is said: one alone is a checkpoint or an evaluation.
# Between two messages about one job. All four are assumptions of ours; no source gives such numbers.
COOLDOWN_S = 6 * 3_600.0
MONITORED_FIGURES = {"tokens_per_s": "tokens/s", "mfu": "MFU"}
# The text of `anadil.core.progress` in the loops of training steps.
PROGRESS = re.compile(r"\b(?:pre-training|finetune): ([0-9,]+) of [0-9,]+")
PAIR = re.compile(r"\b(step|phase|tokens_per_s|mfu)=([0-9.eE+-]+)")


class ThroughputMonitor:
    """Watches the steps of one job."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {name: deque(maxlen=MEDIAN_STEPS) for name in MONITORED_FIGURES}
        self._slow: dict[str, list[float]] = {name: [] for name in MONITORED_FIGURES}
        self._phase: float | None = None
        self._quiet_until = 0.0

    def add(self, line: str) -> str:
        """Return a sentence about a fall in speed that this line shows; empty where there is none."""
        figures = figures_in_line(line)
        if "step" not in figures:
            return ""
        if figures.get("phase") != self._phase:
            # Another phase trains other parameters, at another speed.
            self._phase = figures.get("phase")
            for name in MONITORED_FIGURES:
                self._forget(name)
        texts = [
            text for name in MONITORED_FIGURES if name in figures and (text := self._judge(name, figures))
        ]
        if not texts or time.monotonic() < self._quiet_until:
            return ""
        self._quiet_until = time.monotonic() + COOLDOWN_S
        return "; ".join(texts)

    def _judge(self, name: str, figures: dict[str, float]) -> str:
        value, seen, slow = figures[name], self._seen[name], self._slow[name]
        usual = median(seen) if len(seen) == MEDIAN_STEPS else 0.0
        if value >= SLOW_FRACTION * usual:
            seen.append(value)
            slow.clear()
            return ""
        slow.append(value)
        if len(slow) < SLOW_STEPS:
            return ""
        now = median(slow)
        self._forget(name)  # what is usual from now on
        return (
            f"{MONITORED_FIGURES[name]} fell to {now:,.4g} at step {figures['step']:,.0f}, {now / usual:.0%} of the {usual:,.4g} "
            f"before; look for a slow node, a throttled GPU, storage"
        )

    def _forget(self, name: str) -> None:
        self._seen[name].clear()
        self._slow[name].clear()


def figures_in_line(line: str) -> dict[str, float]:
    """Read the numbers of a step's line: `figures` of a JSON line, or `step=120 tokens_per_s=9000`."""
    if "step" not in line:
        return {}
    fields = log_fields(line)
    figures = fields.get("figures")
    if isinstance(figures, dict):
        return {name: float(value) for name, value in figures.items() if type(value) in (int, float)}
    numbers: dict[str, float] = {}
    for name, text in PAIR.findall(str(fields.get("msg", "")) if fields else line):
        with suppress(ValueError):
            numbers[name] = float(text)
    return numbers


def step_in_line(line: str) -> int | None:
    """Return the optimizer step that a line reports, if any."""
    figures = figures_in_line(line)
    if "step" in figures:
        return int(figures["step"])
    match = PROGRESS.search(line)
    return int(match[1].replace(",", "")) if match else None
