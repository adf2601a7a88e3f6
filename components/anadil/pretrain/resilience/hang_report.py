"""The processes that cause a hang, from the last sign of life of each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LATER = ("reduce", "optimizer", "validate", "save")
"""Sections after the micro-batches of a step, in their order."""
MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Last sign of life of a process."""

    rank: int
    host: str
    pid: int
    step: int
    beats: int
    """Sections begun in this step."""
    section: str
    silent_s: float
    """Seconds since the last of them."""
    ticks: int
    """Rounds of the watchdog's thread: they stand still where the process does not run."""
    where: str = ""
    """File and function that its main thread is in."""
    waits: bool = False
    """That is a collective."""
    runs: bool = True

    def stopped_since(self, before: "RankProgress") -> "RankProgress":
        """Copy it, marked if the process has not run in between."""
        return replace(self, runs=self.ticks != before.ticks)

    def reached(self) -> tuple[int, int, int]:
        """Progress in the order that is the same in all processes."""
        later = LATER.index(self.section) + 1 if self.section in LATER else 0
        return (self.step, later, self.beats)


def culprits(ranks: Mapping[int, RankProgress], speaker: int, folder: Path) -> str:
    """Name the processes that hold up the others, in a sentence of rank `speaker`; stacks lie in `folder`."""
    remedy = f"stacks of each process are in {folder}/hang-rank-*.txt; run the same command again to resume"
    # First those that do not run at all: others wait for them and look stuck.
    frozen = [one for one in ranks.values() if not one.runs]
    if frozen:
        what = "does not run (stopped, killed, computing with Python's lock held, or its node is gone)"
        return f"the run hangs: {_named(frozen)}, and {what}; {remedy}"
    # Then those that came less far than the others, which wait for them.
    slowest = min(one.reached() for one in ranks.values())
    behind = [one for one in ranks.values() if one.reached() == slowest]
    if len(behind) == len(ranks) > 1:
        # All came equally far. Those outside a collective while others are in one, or else in a rare place.
        outside = [one for one in behind if not one.waits]
        places = Counter(one.where for one in behind)
        rarest = [one for one in behind if places[one.where] == min(places.values())]
        behind = outside if 0 < len(outside) < len(behind) else rarest
    if len(ranks) == 1 or len(behind) < len(ranks):
        return f"the run hangs: {_named(behind)}; {remedy}"
    # All wait in the same place.
    one = ranks[speaker]
    return (
        f"the run hangs: all {len(ranks)} processes wait in {one.section} of step {one.step}, and none is behind: "
        f"check the network between them; {remedy}"
    )


def _named(some: Sequence[RankProgress]) -> str:
    texts = [
        f"rank {one.rank} on {one.host} (process {one.pid}) is stuck in {one.section} of step {one.step}"
        + (f" at {one.where}" if one.where and one.runs else "")
        + (f", silent for {one.silent_s:.0f} s" if one.runs else "")
        for one in some[:MOST_NAMED]
    ]
    more = f" and {len(some) - MOST_NAMED} more" if len(some) > MOST_NAMED else ""
    return ", ".join(texts) + more
