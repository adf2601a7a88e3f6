"""Cost of a training step while a browser watches the run.

    python -m benchmarks.watch.step_cost --work /tmp/step_cost [--browser] [--pairs 30] [--seconds 15]

One training of the built-in tiny model goes on all the time, beside one server. Stretches that are watched alternate with
stretches that are not, in the order of ABBA, so that a load of others falls on both. A watcher asks for the run's page as
the page itself does: with the tag that it has, after the wait that the server names. `--browser` lets the page do so, in a
headless Chromium: then its work on the same cores counts, too.
"""

import argparse
import http.client
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.kit.browser import browser

EVERY_S = 2.0
"""Least wait of the page between two questions: `EVERY_MS` of `watch.js`."""
POLL_S = 0.05
DRAWS = 10_000
MIX = "mix: {az: .9, en: .1}"
Watch = Callable[[bool], None]
"""Begins to watch, or ends it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time of a step in one stretch, and the server's share of the machine meanwhile."""

    seconds: float
    """Clock time of a step."""
    cpu_s: float
    """CPU time of a step, in all processes of the training."""
    server_share: float
    """Share of the machine's CPU time that the server takes, 0 to 1."""


@contextmanager
def started(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of the program for the block."""
    arguments = [sys.executable, "-m", "anadil", *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it, those that have ended among them."""
    total = 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total + sum(cpu_s(int(child)) for child in children)


class Steps:
    """Logged steps of the training."""

    def __init__(self, work: Path, training: int, server: int) -> None:
        self._work, self._pids = work, (training, server)

    def stretch(self, seconds: float) -> Stretch:
        """Wait for a step, then for the first one after some seconds."""
        first, begin, *before = self._next()
        time.sleep(seconds)
        last, end, *after = self._next()
        steps, clock = last - first, end - begin
        return Stretch(
            clock / steps,
            (after[0] - before[0]) / steps,
            (after[1] - before[1]) / clock / (os.cpu_count() or 1),
        )

    def _next(self) -> tuple[int, float, float, float]:
        known = self._last()
        while (now := self._last()) == known:
            time.sleep(POLL_S)
        training, server = map(cpu_s, self._pids)
        return now, time.monotonic(), training, server

    def _last(self) -> int:
        for path in self._work.glob("model/*.work/training.jsonl"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4_000))
                lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b'{"step"')]
            return int(json.loads(lines[-1])["step"]) if lines else 0
        return 0


def asking(address: str, path: str) -> Watch:
    """A watcher that asks as the page does."""
    parts = urlsplit(address)
    asks, tag, wait = threading.Event(), "", EVERY_S

    def ask(cookie: str) -> None:
        nonlocal tag, wait
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": cookie, "If-None-Match": tag})
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 304), answer.status
        tag, wait = answer.headers.get("ETag", tag), max(EVERY_S, float(answer.headers["X-Wait-S"]))
        connection.close()

    def loop() -> None:
        cookie = f"anadil-watch-{parts.port}={parts.query.partition('=')[2]}"
        while True:
            asks.wait()
            ask(cookie)
            time.sleep(wait)

    threading.Thread(target=loop, daemon=True).start()
    return lambda on: asks.set() if on else asks.clear()


@contextmanager
def watcher(address: str, path: str, *, in_browser: bool) -> Iterator[Watch]:
    """A watcher of a page, which does not watch yet."""
    if not in_browser:
        yield asking(address, path)
        return
    with browser() as page:
        page.open(address)
        page.open(f"{address.partition('?')[0].rstrip('/')}{path}")
        page.value("window.whole = refresh, 0")

        def watch(on: bool) -> None:
            page.value(
                "refresh = window.whole, refresh(), 0" if on else "clearTimeout(timer), refresh = () => {}, 0"
            )

        watch(False)
        yield watch


def ratio(pairs: list[tuple[float, float]]) -> str:
    """Geometric mean of (watched / not watched), less 1, with the 95 % interval of a bootstrap over pairs."""
    logs = [math.log(watched / alone) for alone, watched in pairs]
    draw = random.Random(7)  # noqa: S311  a bootstrap
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(DRAWS))
    low, high = means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS)]
    return " ".join(f"{100 * (math.exp(each) - 1):+.2f} %" for each in (statistics.fmean(logs), low, high))


def main() -> None:
    """Print the figures of all pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--browser", action="store_true")
    options = parser.parse_args()
    settings = (
        f"pretrain.phases=[{{trains: all, steps: 30000, lr: 0.0001, {MIX}}}]",
        "sources.az.max_epochs=10000", "sources.en.max_epochs=10000", "pretrain.log_every=1",
        "pretrain.validate_every=1000", "pretrain.checkpoint_every=5000", "tracking.uri=off",
    )  # fmt: skip
    given = [word for setting in settings for word in ("--set", setting)]
    with (
        started("run", "smoke", "--work", str(options.work), "--until", "pretrain", *given) as training,
        started("watch", "--work", str(options.work), "--port", "0", "--no-open") as server,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        steps = Steps(options.work, training.pid, server.pid)
        steps.stretch(60)  # made, loaded and warm
        run = next((options.work / "runs").glob("*.json")).stem
        pairs: list[tuple[Stretch, Stretch]] = []
        with watcher(address, f"/run/{run}", in_browser=options.browser) as watch:
            for number in range(options.pairs):
                by_side: dict[bool, Stretch] = {}
                for on in (False, True) if number % 2 else (True, False):
                    watch(on)
                    by_side[on] = steps.stretch(options.seconds)
                watch(False)
                pairs.append((by_side[False], by_side[True]))
    print(
        f"{len(pairs)} pairs of {options.seconds:g} s, load {os.getloadavg()[2]:.1f}, {os.cpu_count()} CPUs"
    )
    print(f"a step alone: {statistics.median(one.seconds for one, _ in pairs):.3f} s")
    print("more by the clock:", ratio([(one.seconds, other.seconds) for one, other in pairs]))
    print("more CPU time:", ratio([(one.cpu_s, other.cpu_s) for one, other in pairs]))
    for name, side in (("alone", 0), ("watched", 1)):
        share = statistics.fmean(pair[side].server_share for pair in pairs)
        print(f"share of the machine's CPU time, server, {name}: {100 * share:.2f} %")


if __name__ == "__main__":
    main()
