"""The process that a hang is due to, from the last sign of life of each."""

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
    """Looks of the watchdog's thread: they stand still where the process does not run."""
    where: str = ""
    """File and function that its main thread is in."""
    waits: bool = False
    """That is a collective."""
    runs: bool = True

    def stopped_since(self, before: "RankProgress") -> "RankProgress":
        """The same, marked if the process has not run in between."""
        return replace(self, runs=self.ticks != before.ticks)

    def reached(self) -> tuple[int, int, int]:
        """How far the process came; equal processes do the same things in the same order."""
        later = LATER.index(self.section) + 1 if self.section in LATER else 0
        return (self.step, later, self.beats)


def culprits(ranks: Mapping[int, RankProgress], speaker: int, folder: Path) -> str:
    """One sentence that names the processes that hold up the others.

    Those that do not run at all; else those that came less far than the others, which wait for
    them; else those that are in another place of the program; else nobody: all wait in the same
    place, so it is the network.

    Args:
        ranks: Last sign of life of each process, by rank.
        speaker: Rank of the process that says it.
        folder: Where the stacks lie.
    """
    remedy = f"stacks of each process are in {folder}/hang-rank-*.txt; run the same command again to resume"
    # Those first: others wait for them and look stuck.
    frozen = [one for one in ranks.values() if not one.runs]
    if frozen:
        what = "does not run (stopped, killed, computing with Python's lock held, or its node is gone)"
        return f"the run hangs: {_named(frozen)}, and {what}; {remedy}"
    slowest = min(one.reached() for one in ranks.values())
    behind = [one for one in ranks.values() if one.reached() == slowest]
    if len(behind) == len(ranks) > 1:
        # All came equally far, so only the place in the program tells them apart.
        behind = _elsewhere(behind)
    if len(ranks) == 1 or len(behind) < len(ranks):
        return f"the run hangs: {_named(behind)}; {remedy}"
    one = ranks[speaker]
    return (
        f"the run hangs: all {len(ranks)} processes wait in {one.section} of step {one.step}, and none is behind: "
        f"check the network between them; {remedy}"
    )


def _elsewhere(some: Sequence[RankProgress]) -> list[RankProgress]:
    """Those outside a collective while others are in one, or else in a place where few are."""
    outside = [one for one in some if not one.waits]
    if outside and len(outside) < len(some):
        return outside
    places = Counter(one.where for one in some)
    rarest = min(places.values())
    return [one for one in some if places[one.where] == rarest]


def _named(some: Sequence[RankProgress]) -> str:
    texts = [
        f"rank {one.rank} on {one.host} (process {one.pid}) is stuck in {one.section} of step {one.step}"
        + (f" at {one.where}" if one.where and one.runs else "")
        + (f", silent for {one.silent_s:.0f} s" if one.runs else "")
        for one in some[:MOST_NAMED]
    ]
    more = f" and {len(some) - MOST_NAMED} more" if len(some) > MOST_NAMED else ""
    return ", ".join(texts) + more
