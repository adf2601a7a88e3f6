"""How far a loop is: a bar on a terminal, a log line every ten seconds elsewhere."""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from anadil.core.format import human_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

log = logging.getLogger(__name__)

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 10.0
SPEED_OVER_S = 3_600.0
"""Window for a bar's time left: a step of a large model on a laptop takes more than rich's 30 s."""


class Progress:
    """Counts the items of one loop; `advance` is cheap enough for every item."""

    def __init__(self, what: str, total: int | None, bar: "RichProgress | None") -> None:
        self.what, self.total = what, total
        self.done = self._first = 0
        self._started = time.monotonic()
        self._next_line = self._started + SECONDS_BETWEEN_LINES
        self._bar = bar
        self._task: TaskID | None = bar.add_task(what, total=total, note="") if bar else None

    def begin(self, done: int) -> None:
        """Go on, or back, to where `done` items are done; time left is reckoned from here."""
        if done == self.done:
            return
        self.done = self._first = done
        self._started = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=self.total, completed=done, note="")

    def advance(self, num: int = 1, note: str = "") -> None:
        """Count `num` more items; `note` is a word on the state, such as `loss 2.31`."""
        self.done += num
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, note=note)
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + SECONDS_BETWEEN_LINES
        text, done, seconds = f"{self.done:,}", self.done - self._first, None
        if self.total is not None:
            text += f" of {self.total:,}"
            if done:  # else there is nothing to reckon the time left from
                seconds = (now - self._started) / done * (self.total - self.done)
                text += f", {human_seconds(seconds)} left"
        state = {"what": self.what, "done": self.done, "total": self.total, "seconds_left": seconds}
        # The log of the run has the line also where a terminal shows the bar instead.
        more = {"progress": state, "is_on_bar": self._bar is not None}
        log.info("%s: %s%s", self.what, text, f", {note}" if note else "", extra=more)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Progress]:
    """Show the progress of the block's loop; rich is loaded only where there is a terminal."""
    is_first = os.environ.get("RANK", "0") == "0"
    if os.environ.get("ANADIL_LOG") == "json" or not sys.stderr.isatty() or not is_first:
        yield Progress(what, total, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = ("  {task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(
        *columns,
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=SPEED_OVER_S,
    ) as bar:
        yield Progress(what, total, bar)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Pass the items on and show how many have gone by."""
    with progress(what, total) as shown:
        for item in items:
            yield item
            shown.advance()
