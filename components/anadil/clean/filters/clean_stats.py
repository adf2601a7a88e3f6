"""Counts of everything that happened to the documents of a shard, and samples of the dropped ones."""

import time
from bisect import insort
from collections import Counter, defaultdict
from typing import Any

SAMPLES = 20
SAMPLE_CHARS = 2_000
Row = dict[str, Any]
COUNTERS = ("counts", "dropped", "personal_data", "extraction", "formats", "sides", "lateness", "seconds")


class StepTimer:
    """Seconds of each step; a process has one.

    Steps follow one another, so that each reads the clock once.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last = 0.0

    def start(self) -> None:
        """Let the next step begin now."""
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """Add the time since the last step ended to this one."""
        now = time.perf_counter()
        self.seconds[step] += now - self._last
        self._last = now


class CleanStats:
    """Counts of shards; the sum of several is that of their records."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(documents_in=0)
        """`documents_in`, and how many of them were normalized, unescaped and so on."""
        self.dropped: Counter[str] = Counter()
        self.personal_data: Counter[str] = Counter()
        """Placeholders in documents that no rule dropped, by kind."""
        self.extraction: Counter[str] = Counter()
        """Characters of prose of all pages, by what became of it."""
        self.formats: Counter[str] = Counter()
        """Documents whose field of text was no prose, by format."""
        self.sides: Counter[str] = Counter()
        self.lateness: Counter[str] = Counter()
        """`FILE<tab>KEY`: sums of `figures.Lateness` over the pairs of a file."""
        self.seconds: Counter[str] = Counter()
        self._samples: defaultdict[str, list[tuple[str, int, Row]]] = defaultdict(list)
        self._num_seen = 0

    def drop(self, reason: str, sample: Row) -> None:
        """Count a dropped document; the rows of `rejected/` with the smallest ids are kept as samples."""
        self.dropped[reason] += 1
        measured = {"reason": reason, "value": None, "limit": None}
        self._keep(reason, {**measured, **sample, "text": sample["text"][:SAMPLE_CHARS]})

    def samples(self) -> dict[str, list[Row]]:
        """Return the samples of each reason, smallest ids first."""
        return {reason: [row for _, _, row in rows] for reason, rows in sorted(self._samples.items())}

    def summary(self) -> str:
        """Name reasons and counts, most frequent first."""
        ordered = sorted(self.dropped.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} {count:,}" for reason, count in ordered) or "none"

    def as_json(self) -> Row:
        """Return everything, for the file of a shard."""
        return {**{name: dict(getattr(self, name)) for name in COUNTERS}, "samples": self.samples()}

    def add(self, other: Row) -> None:
        """Add what `as_json` gave of the shard that follows."""
        for name in COUNTERS:
            getattr(self, name).update(other[name])
        for reason, rows in other["samples"].items():
            for row in rows:
                self._keep(reason, row)

    def _keep(self, reason: str, sample: Row) -> None:
        samples = self._samples[reason]
        if len(samples) == SAMPLES and sample["id"] >= samples[-1][0]:
            return
        self._num_seen += 1  # of equal ids the first one stays
        insort(samples, (sample["id"], self._num_seen, sample))
        del samples[SAMPLES:]
