"""The log of one worker, live, whatever happens to connections, containers and pods."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime

from anadil.core.errors import AnadilError, RetryableError
from anadil.launch.kubernetes.api.client import JobApi, LogStream

SILENCE_S = 90.0
"""Without a byte for so long the connection counts as lost: stages speak every ten seconds when they train."""
SLACK_S = 60
"""Asked for once more when a connection is made again; what was seen already is left out."""
MAX_LOG_LINE_BYTES = 1024 * 1024
"""A longer line is cut. Ours have 16 kB at most."""
Moment = tuple[int, int]
"""Seconds since 1970 and nanoseconds."""


class PodLog:
    """Lines of a log, each once, from one connection after the other."""

    def __init__(
        self,
        api: JobApi,
        pod: Callable[[], str],
        *,
        retry_s: float,
        since_s: float | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            api: Where from.
            pod: Name of the pod; empty while there is none.
            retry_s: Time between attempts.
            since_s: Leave out what is older now; left out, nothing is.
        """
        self._api = api
        self._pod = pod
        self._retry_s = retry_s
        self._since_s = since_s
        self._last: Moment | None = None
        self._num_last = 0
        """Lines seen with the time `_last`."""
        self._heard = time.monotonic()
        self._has_read = False
        self._open: LogStream | None = None

    def interrupt(self) -> None:
        """Let the thread that reads look whether the job has ended, instead of waiting for a line."""
        if self._open is not None:
            self._open.interrupt()

    def lines(self, ended: Callable[[], bool]) -> Iterator[str]:
        """Lines without line ends and times, until the job has ended and all is read.

        Args:
            ended: Whether nothing more will come.

        Raises:
            PreflightError: The log may not be read.
        """
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


def tail(api: JobApi, pod: str, *, lines: int, previous: bool = False) -> list[str]:
    """The last lines of a log; none where it cannot be had."""
    query = {"tailLines": lines, "previous": previous}
    try:
        with api.log(pod, SILENCE_S, **query) as stream:
            text = b"".join(stream.pieces).decode(errors="replace")
    except AnadilError:  # also where it may not be read: the end of the job says more than that
        return []
    return text.splitlines()[-lines:]


def write_log_line(line: str) -> None:
    """Show a line of a job's log as it is: stages write JSON."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _lines_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[:MAX_LOG_LINE_BYTES]
        yield from whole


def _parted(line: bytes) -> tuple[Moment | None, str]:
    """When a line was written, to the nanosecond, and its text."""
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
