"""The log of one worker: live, whatever happens to connections and pods, and read for steps and a fall in speed."""

import logging
import math
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from statistics import median

from anadil.core.errors import AnadilError, RetryableError
from anadil.launch.job import (
    RUN_LABEL,
    STAGE_LABEL,
    TARGET_ANNOTATION,
    ApiObject,
    annotations,
    labels,
    log_fields,
)
from anadil.launch.kubernetes.client import JobApi, LogStream
from anadil.launch.kubernetes.ledger import StepCounter
from anadil.runtime.alerts import Event, notify

log = logging.getLogger(__name__)

# Without a byte for so long the connection counts as lost: stages log every ten seconds when they train.
SILENCE_S = 90.0
# Asked for once more when a connection is made again; lines that were seen already are skipped.
SLACK_S = 60
MAX_LOG_LINE_BYTES = 1024 * 1024  # A longer line is cut. Ours have 16 kB at most.
TAIL_LINES = 200
LOG_REST_S = 20.0  # How long the end of a job waits for the rest of its log.
WORKER_END_S = 1.0  # How long for worker 0 to end by itself: it may hang where another has failed.
Moment = tuple[int, int]  # Seconds since 1970 and nanoseconds.
MEDIAN_STEPS = 20  # Logged steps whose median is what the job can do.
SLOW_FRACTION = 0.7  # A step below this share of the median is slow.
SLOW_STEPS = 3  # Slow steps after which it is said: one alone is a checkpoint or an evaluation.
# Between two messages about one job. All four are assumptions of ours; no source gives such numbers.
COOLDOWN_S = 6 * 3_600.0
MONITORED_FIGURES = {"tokens_per_s": "tokens/s", "mfu": "MFU"}
# The text of `anadil.core.progress` in the loops of training steps.
PROGRESS = re.compile(r"\b(?:pre-training|finetune): ([0-9,]+) of [0-9,]+")
PAIR = re.compile(r"\b(step|phase|tokens_per_s|mfu)=([0-9.eE+-]+)")


class PodLog:
    """Lines of a log, each once, from one connection after the other."""

    def __init__(
        self, api: JobApi, pod: Callable[[], str], *, retry_s: float, since_s: float | None = None
    ) -> None:
        """Prepare for a pod, whose name is empty while there is none; lines older than `since_s` now are skipped."""
        self._api = api
        self._pod = pod
        self._retry_s = retry_s
        self._since_s = since_s
        self._last: Moment | None = None
        self._num_last = 0  # Lines seen with the time `_last`.
        self._heard = time.monotonic()
        self._has_read = False
        self._open: LogStream | None = None

    def interrupt(self) -> None:
        """Let the thread that reads see whether the job has ended, before the next line comes."""
        if self._open is not None:
            self._open.interrupt()

    def lines(self, ended: Callable[[], bool]) -> Iterator[str]:
        """Yield lines without line ends and times, until the job has ended and all is read."""
        while True:
            is_last = ended()  # before the read, so that what comes in between is not missed
            pod = self._pod()
            for previous in (True, False):
                # The container before tells the end that a lost connection or a crash kept from us.
                if not pod or (previous and not self._has_read):
                    continue
                try:
                    yield from self._read(pod, previous=previous, follow=not (previous or is_last))
                except RetryableError:
                    continue
            if is_last:
                return
            time.sleep(self._retry_s)

    def _read(self, pod: str, *, previous: bool, follow: bool) -> Iterator[str]:
        query: dict[str, bool | int] = {"follow": follow, "previous": previous, "timestamps": True}
        # By our clock since the last line came, as the node's clock may differ; before the first line, since we began.
        silent_s = time.monotonic() - self._heard
        if self._last is not None:
            query["sinceSeconds"] = math.ceil(silent_s) + SLACK_S
        elif self._since_s is not None:
            query["sinceSeconds"] = max(1, math.ceil(self._since_s + silent_s))
        again = self._num_last
        with self._api.log(pod, SILENCE_S, **query) as stream:
            self._open = stream if follow else None
            self._has_read = self._has_read or not previous
            # A rest without a line end is half a line; it comes again, whole.
            for line in _lines_of(stream.pieces):
                when, text = _parted(line)
                if when is None or (self._last is not None and when < self._last):
                    continue
                if when == self._last:
                    if again:
                        again -= 1
                        continue
                    self._num_last += 1
                else:
                    self._last, self._num_last, again = when, 1, 0
                self._heard = time.monotonic()
                yield text


class LogRelay:
    """A thread that passes the log of worker 0 on, and reads it for steps and a fall in speed."""

    def __init__(
        self, api: JobApi, job: ApiObject, pod: Callable[[], str], *, retry_s: float, since_s: float | None
    ) -> None:
        self.steps = StepCounter()
        self.last_lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._job = job
        self._retry_s = retry_s
        self._speed = ThroughputMonitor()
        self._ended = threading.Event()
        self._end_s = min(WORKER_END_S, 10 * retry_s)
        self._log = PodLog(api.apart(), pod, retry_s=retry_s, since_s=since_s)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self) -> None:
        """Pass on the rest of the log of a job that has ended, for a limited time."""
        self._ended.set()
        self._thread.join(self._end_s)
        self._log.interrupt()
        self._thread.join(LOG_REST_S)

    def stop(self) -> None:
        """End soon, without the rest."""
        self._ended.set()
        self._log.interrupt()

    def _run(self) -> None:
        last_warning = ""
        while True:
            try:
                for line in self._log.lines(self._ended.is_set):
                    self._take(line)
                return
            except AnadilError as error:
                # For now: an API server that restarts refuses what is allowed.
                if str(error) != last_warning:
                    last_warning = str(error)
                    log.warning("the job's log is not shown: %s", error)
            if self._ended.is_set():
                return
            self._ended.wait(self._retry_s)

    def _take(self, line: str) -> None:
        write_log_line(line)
        self.last_lines.append(line)
        step = step_in_line(line)
        if step is not None:
            self.steps.add(step)
        slow = self._speed.add(line)
        if slow:
            log.warning("%s", slow)
            run, stage = (labels(self._job).get(name, "") for name in (RUN_LABEL, STAGE_LABEL))
            artifact = annotations(self._job).get(TARGET_ANNOTATION, "")
            event = Event(kind="anomaly", run=run, stage=stage, message=slow, artifact=artifact)
            threading.Thread(target=notify, args=[event], daemon=True).start()


def tail(api: JobApi, pod: str, *, previous: bool = False) -> list[str]:
    """Return the last lines of a log; none where it cannot be had."""
    try:
        with api.log(pod, SILENCE_S, tailLines=TAIL_LINES, previous=previous) as stream:
            text = b"".join(stream.pieces).decode(errors="replace")
    except AnadilError:  # also where it may not be read: the end of the job says more than that
        return []
    return text.splitlines()[-TAIL_LINES:]


def write_log_line(line: str) -> None:
    """Write a line of a job's log to stderr as it is: stages write JSON."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _lines_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[:MAX_LOG_LINE_BYTES]
        yield from whole


def _parted(line: bytes) -> tuple[Moment | None, str]:
    """Return when a line was written, to the nanosecond, and its text."""
    stamp, _, text = line.decode(errors="replace").rstrip("\r").partition(" ")
    whole, _, rest = stamp.partition(".")
    digits = rest.rstrip("Z").partition("+")[0].partition("-")[0]
    # Trailing zeros are left out by some runtimes, so the text itself cannot be compared.
    zone = rest[len(digits) :] if rest else ""
    try:
        second = datetime.fromisoformat(f"{whole}{zone}")
    except ValueError:
        return None, text
    return (int(second.timestamp()), int(digits[:9].ljust(9, "0") or 0)), text


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
