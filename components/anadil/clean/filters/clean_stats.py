"""Counts of everything that happened to the documents of a shard, and samples of the dropped ones."""

import time
from bisect import insort
from collections import Counter, defaultdict
from typing import Any

SAMPLES = 20
"""Dropped documents kept for each reason, to look at."""
SAMPLE_CHARS = 2_000
Row = dict[str, Any]


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

    num_samples = SAMPLES

    def __init__(self) -> None:
        self.documents_in = 0
        self.dropped: Counter[str] = Counter()
        self.normalized = 0
        self.unescaped = 0
        self.escaped = 0
        self.retried = 0
        self.foreign_lines = 0
        self.personal_data: Counter[str] = Counter()
        """Placeholders in documents that no rule dropped, by kind."""
        self.extraction: Counter[str] = Counter()
        """Characters of prose of all pages, by what became of it."""
        self.seconds: Counter[str] = Counter()
        self._samples: defaultdict[str, list[tuple[str, int, Row]]] = defaultdict(list)
        self._num_seen = 0

    def drop(self, reason: str, sample: Row) -> None:
        """Count a dropped document; those with the smallest ids are kept as samples.

        Args:
            reason: Name of the rule.
            sample: A row of `rejected/`; its `id` and `text` are read, and `value` and `limit` are null
                where nothing was measured.
        """
        self.dropped[reason] += 1
        measured = {"reason": reason, "value": None, "limit": None}
        self._keep(reason, {**measured, **sample, "text": sample["text"][:SAMPLE_CHARS]})

    def samples(self) -> dict[str, list[Row]]:
        """The samples of each reason, smallest ids first."""
        return {reason: [row for _, _, row in found] for reason, found in sorted(self._samples.items())}

    def summary(self) -> str:
        """Reasons and counts, most frequent first."""
        ordered = sorted(self.dropped.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} {count:,}" for reason, count in ordered) or "none"

    def as_json(self) -> Row:
        """Everything, for the file of a shard."""
        return {
            "documents_in": self.documents_in,
            "dropped": dict(self.dropped),
            "normalized": self.normalized,
            "unescaped": self.unescaped,
            "escaped": self.escaped,
            "retried": self.retried,
            "foreign_lines": self.foreign_lines,
            "personal_data": dict(self.personal_data),
            "extraction": dict(self.extraction),
            "seconds": dict(self.seconds),
            "samples": self.samples(),
        }

    def add(self, other: Row) -> None:
        """Add what `as_json` gave of the shard that follows."""
        self.documents_in += other["documents_in"]
        self.normalized += other["normalized"]
        self.unescaped += other["unescaped"]
        self.escaped += other["escaped"]
        self.retried += other["retried"]
        self.foreign_lines += other["foreign_lines"]
        self.dropped.update(other["dropped"])
        self.personal_data.update(other["personal_data"])
        self.extraction.update(other["extraction"])
        self.seconds.update(other["seconds"])
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
