"""Ledger of the retrainings of a champion: a small file each, from which the next one tells what was missed.

They lie in `<storage.root>/retrain/<name>/`. Times are of the machine that wrote them; nothing but these sentences
depends on them, so a clock that jumps costs a sentence.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import BUG, INTERRUPTED, AnadilError, DataError, GateError
from anadil.core.format import counted, human_seconds
from anadil.core.log import masked
from anadil.release.release_record import read_release
from anadil.runtime.run_record import STOPPED, read_record, record_uri

Outcome = Literal[
    "running", "nothing", "champion", "challenger", "refused", "text refused", "failed", "stopped"
]
ADMIT = "admit"
"""Step that refuses text; any other that fails has another cause."""
MAX_REASON_CHARS = 2_000
SHOWN = 30
"""Retrainings that are read: enough for an interval. Chosen by us."""
LEAST_INTERVALS = 3
"""From so many alike on, intervals are a schedule. Chosen by us."""
ALIKE = 0.1
"""Part of the usual interval by which half of all may differ from it. Chosen by us: months differ by less."""
RETRY_S = 3_600.0
"""Starts that are nearer are one: somebody corrected a mistake and started again. Chosen by us."""
WORDS: dict[Outcome, str] = {
    "running": "it was stopped without a word; finished steps are reused",
    "nothing": "there was no new text",
    "champion": "the result became the champion",
    "challenger": "the result became the challenger",
    "refused": "the gate refused the result, and the champion stayed",
    "text refused": "its new text was refused, and the champion stayed",
    "failed": "it failed",
    "stopped": "it was stopped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraining:
    """One retraining."""

    id: str
    """Id of its run."""
    started: float
    """Seconds since 1970."""
    ended: float | None = None
    champion: str
    """Version that it began with."""
    num_files: int = 0
    """New files that it read."""
    outcome: Outcome = "running"
    exit_code: int | None = None
    version: str = ""
    """Version that its result got."""
    reason: str = ""
    """Reason of its end, as a sentence for people."""


class Ledger:
    """Retrainings of one registered model, below a storage root."""

    def __init__(self, root: str, name: str) -> None:
        self.folder = join(root, "retrain", name)

    def write(self, retraining: Retraining) -> None:
        """Write a retraining, over what the ledger has of it."""
        content = json.dumps(asdict(retraining), ensure_ascii=False, indent=1) + "\n"
        place = self._place(retraining)
        storage.store(place).write(place, content.encode(errors="replace"))

    def read(self) -> list[Retraining]:
        """Return the last retrainings, the oldest first; what cannot be read is left out."""
        # The lock and the claim lie beside them, and a retraining has a name that begins with its year.
        names = sorted(
            name for name in storage.store(self.folder).listed(self.folder) if name.startswith("2")
        )
        return sorted(filter(None, map(self._readable, names[-SHOWN:])), key=lambda each: each.started)

    def last_of(self, run: str) -> Retraining | None:
        """Return what the ledger has of a run."""
        return next((each for each in self.read() if each.id == run), None)

    @contextmanager
    def recorded(self, retraining: Retraining) -> Iterator[list[Retraining]]:
        """Write a retraining before the block and after it.

        Yields:
            A list that takes it as it has ended.
        """
        self.write(retraining)
        endings: list[Retraining] = []
        try:
            yield endings
        except AnadilError as error:
            endings.append(ended(retraining, error.exit_code, reason=str(error)))
            raise
        except KeyboardInterrupt:
            endings.append(ended(retraining, INTERRUPTED))
            raise
        finally:
            last = endings[-1] if endings else ended(retraining, BUG)
            self.write(replace(last, ended=time.time()))

    def _place(self, retraining: Retraining) -> str:
        begin = datetime.fromtimestamp(retraining.started, UTC)
        return join(self.folder, f"{begin:%Y%m%d-%H%M%S}-{retraining.id}.json")

    def _readable(self, name: str) -> Retraining | None:
        place = join(self.folder, name)
        try:
            return TypeAdapter(Retraining).validate_json(storage.store(place).read(place))
        except (ValidationError, AnadilError, OSError):
            return None


def ended(
    retraining: Retraining, exit_code: int, *, release: str = "", step: str = "", reason: str = ""
) -> Retraining:
    """Return a retraining with its outcome.

    Args:
        retraining: As it began.
        exit_code: Of its run.
        release: URI of the artifact `release`, where the run has made one.
        step: Step that failed.
        reason: Why it failed.
    """
    reason = masked(reason)[:MAX_REASON_CHARS]
    if exit_code or not release:
        outcome: Outcome = "stopped" if exit_code in STOPPED else "failed" if exit_code else "nothing"
        if step == ADMIT and exit_code == DataError.exit_code:
            outcome = "text refused"
        return replace(retraining, outcome=outcome, exit_code=exit_code, reason=reason)
    record = read_release(release)
    # The stage has finished whatever the gate said; its verdict is the end of the command.
    code = GateError.exit_code if record.outcome == "refused" else 0
    reason = " ".join(record.reasons)[:MAX_REASON_CHARS]
    return replace(retraining, outcome=record.outcome, exit_code=code, version=record.version, reason=reason)


def failure_of(root: str, run: str) -> tuple[str, str]:
    """Return the step of a run that failed, and why; empty where its record does not say."""
    with suppress(AnadilError, OSError):
        steps = read_record(record_uri(root, run)).steps
        failed = [(name, step.message) for name, step in steps.items() if step.exit_code]
        return failed[-1] if failed else ("", "")
    return "", ""


def as_registered(end: Retraining, version: str) -> Retraining:
    """Return an ending as the registry has it.

    Args:
        end: By the artifact `release`, which the same text reuses, and which knows of no rollback.
        version: Champion now; empty for none.
    """
    if end.outcome != "champion" or version == end.version:
        return end
    reason = (
        f"Version {end.version} became champion in an earlier run of the same text, and was rolled back since; version "
        f"{version or 'none'} stays champion. Only anadil promote --as champion makes it champion again."
    )
    return replace(end, outcome="challenger", reason=reason)


def lines_of_past(past: Sequence[Retraining], now: float) -> Iterator[str]:
    """Say how the last retraining ended, and how many scheduled times have gone by since.

    Args:
        past: Earlier retrainings, the oldest first.
        now: Seconds since 1970.
    """
    if not past:
        return
    last = past[-1]
    reason = f": {last.reason}" if last.reason else ""
    yield f"the last retraining began {datetime.fromtimestamp(last.started, UTC):%Y-%m-%d %H:%M} UTC: {WORDS[last.outcome]}{reason}"
    if interval := usual_interval([each.started for each in past]):
        missed = round((now - last.started) / interval) - 1
        if missed > 0:
            yield (
                f"{counted(missed, 'scheduled time')} missed: retrainings come every {human_seconds(interval)}, and the last one "
                f"began {human_seconds(now - last.started)} ago; look at the schedule and at the cluster's events"
            )


def usual_interval(starts: Sequence[float]) -> float:
    """Return the seconds between retrainings where they come at regular times; 0 where they do not."""
    # Sorted, since the clock of another machine may have been ahead.
    distinct: list[float] = []
    for start in sorted(starts):
        if not distinct or start - distinct[-1] > RETRY_S:
            distinct.append(start)
    intervals = [later - earlier for earlier, later in pairwise(distinct)]
    if len(intervals) < LEAST_INTERVALS:
        return 0.0
    # Medians: one late start changes neither.
    usual = median(intervals)
    spread = median(abs(each - usual) for each in intervals)
    return usual if spread <= ALIKE * usual else 0.0
