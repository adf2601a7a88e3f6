"""Work that all senders share: a process follows a spool until its run ends, and tries again while a tracker is away."""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anadil.core import log as logs
from anadil.runtime.tracking_spool import CLOSED, DONE, RUN, destination, has_unsent

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 15.0
"""Between two tries to reach a server; shorter than a run's patience at its end."""
PROBE_S = 5.0
"""How long a server has to answer at all, before a client is loaded, which takes seconds of CPU time."""
IsClosed = Callable[[], bool]
Send = Callable[[Path, argparse.Namespace, IsClosed], None]
"""Sends one spool, until it is closed and nothing is left, under the `name` and `run` of some options."""
Trouble = Callable[[Sequence[Path], Callable[[Path], None]], str]
"""Sends spools with a function for each; says why that failed, empty if it did not."""


def sender(kind: str, description: str | None, send: Send, trouble: Trouble) -> int:
    """Send the spool of the command line, and those beside it that wait for the same tracker, until the run has ended.

    Returns:
        0, or 1 where something could not be sent.
    """
    options = _options(f"anadil.runtime.{kind}_sender", description)
    current: Path = options.spool
    unsent = [
        path
        for path in sorted(current.parent.iterdir())
        if path != current and has_unsent(path) and destination(path) == destination(current)
    ]

    def is_closed() -> bool:
        closed = current / CLOSED
        if options.parent and os.getppid() != options.parent:
            closed.touch()  # the run was killed: nobody else will
        return closed.exists()

    while not unsent and not any(path.stem != RUN for path in current.glob("*.jsonl")):
        if is_closed():
            return 0  # every stage was reused: there is nothing to send, and a client takes seconds to import
        time.sleep(0.2)

    def send_one(spool: Path) -> None:
        if spool == current:
            send(spool, options, is_closed)
        else:
            earlier = argparse.Namespace(**{**vars(options), "name": spool.name, "run": ""})
            send(spool, earlier, lambda: True)
        (spool / DONE).touch()

    def try_all() -> str:
        return trouble([path for path in (*unsent, current) if not (path / DONE).exists()], send_one)

    return send_all(try_all, is_closed)


def _options(module: str, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("spool", type=Path, help="directory that holds the lines")
    parser.add_argument("--experiment", default="anadil", help="MLflow experiment")
    parser.add_argument("--name", default="anadil", help="name of the run")
    parser.add_argument("--run", default="", help="pipeline run that other senders send to as well")
    parser.add_argument("--parent", type=int, default=0, help="process whose end closes the spool")
    options = parser.parse_args()
    logs.set_up("tracking")
    return options


def send_all(try_all: Callable[[], str], is_closed: IsClosed) -> int:
    """Try until all is sent, or once more after the run has ended; the exit code."""
    pause_s = 1.0
    while True:
        last = is_closed()
        if not (reason := try_all()):
            return 0
        log.warning("%s", reason)
        if last:
            return 1
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def follow_lines(
    spool: Path, is_closed: IsClosed, poll_s: float = 0.5
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield file and content of each line of a spool, from its first on, until it is closed and nothing is left."""
    offsets: dict[Path, int] = {}
    while True:
        closed, num_lines = is_closed(), 0
        for path in sorted(spool.glob("*.jsonl"), key=began):
            lines, offsets[path] = whole_lines(path, offsets.get(path, 0))
            num_lines += len(lines)
            yield from ((path.stem, data) for line in lines if (data := parsed(line, path)) is not None)
        if closed and not num_lines:
            return
        if not num_lines:
            time.sleep(poll_s)


def noted(path: Path, **words: str) -> dict[str, str]:
    """Note words, if there are any, in a sender's file about a run, and return all that it holds; empty at first."""
    state: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if words:
        state |= words
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(state), encoding="utf-8")
        draft.replace(path)
    return state


def whole_lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Lines from a byte on that are written to their end, a megabyte at most, and where the next one begins."""
    with path.open("rb") as file:
        file.seek(offset)
        lines = [line for line in file.readlines(1_000_000) if line.endswith(b"\n")]
    return lines, offset + sum(map(len, lines))


def parsed(line: bytes, path: Path) -> dict[str, Any] | None:
    """Content of a line; None for a damaged one, which is said."""
    try:
        data: dict[str, Any] = json.loads(line)
    except ValueError:
        log.warning("left out a damaged line of %s: its writer was killed", path)
        return None
    return data


def began(path: Path) -> tuple[int, str]:
    """When a stage began, in ms, by its first line; what is of no stage comes first."""
    with path.open("rb") as file:
        try:
            return int(json.loads(file.readline()).get("time", 0)), path.name
        except ValueError:
            return 0, path.name
