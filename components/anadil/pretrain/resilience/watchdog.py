"""A thread that ends a run that hangs, and says which process is stuck where.

Each process counts its progress (`Watchdog.heartbeat`, nanoseconds) and writes it to a key-value store,
which a thread in C of the first process serves. A process that is silent for too long raises the alarm.
Then each process writes its stacks and ends with exit code 138, so that the job is started again. Without
the store each process watches itself alone.

Three lines of defence:

1. This thread sees a main thread that waits in a collective, a read or a loop of Python.
2. The others see a process that does not run at all: its count of ticks stands still.
3. A main thread that computes in C with Python's lock held stops this thread too. Then `faulthandler`,
   whose timer is a C thread, writes the stacks, and the kernel's own timer ends the process by SIGALRM
   (exit code 142, which is started again like 138).
"""

import contextlib
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # torch's C module

from anadil.core.errors import RetryableError
from anadil.model.process_group import PATIENCE, Group
from anadil.pretrain.callback import Callback, Section
from anadil.runtime.job import Job
from anadil.runtime.termination import report_failure

log = logging.getLogger(__name__)

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


START_AFTER_S = 1_800.0
"""Silence allowed before the first optimizer step is done: `torch.compile` and the first kernels take
minutes. Assumption."""
LOAD_AFTER_S = PATIENCE.total_seconds()
"""The same while the base model is loaded and the corpus is encoded: one process of each node may work for hours."""
MOST_POLL_S = 5.0
"""Longest time between two rounds of the thread."""
POLLS = 20
"""Rounds within the time that a hang may last, so that it is noticed 5 % late at most."""
GATHER_S = 10.0
"""Longest wait for the stacks of the others after an alarm."""
STORE_PATIENCE_S = 10.0
"""Longest wait for an answer of the store, which takes less than a millisecond."""
ALARM, SPEAKER, SAID = "alarm", "speaker", "said"
"""Keys of the store."""


class Watchdog(Callback):
    """Watches the main thread of this process, and with a store those of the others."""

    def __init__(
        self, folder: Path, hang_after_s: float, *, rank: int = 0, size: int = 1, store: Store | None = None,
        start_after_s: float = START_AFTER_S, on_hang: Callable[[], None] | None = None,
        end: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """Set up; nothing runs before `running` is entered.

        Silence of `hang_after_s` is a hang, of `start_after_s` before the first step. `on_hang` is called before
        this process ends, and `end`, with the reason, instead of ending it.
        """
        self._hang_after_s = hang_after_s
        self._start_after_s = max(start_after_s, hang_after_s)
        self._rank, self._size, self._store = rank, size, store
        self._file = folder / f"hang-rank-{rank}.txt"
        self._on_hang = on_hang
        self._end = end or _exit
        self._poll_s = min(MOST_POLL_S, hang_after_s / POLLS)
        self._section: Section = "start"
        self._step = 0
        self._beats = 0
        self._at = time.monotonic()
        self._warm = False
        self._ticks = 0
        self._closed = threading.Event()
        self._stacks: TextIO | None = None

    def on_section(self, section: Section) -> None:
        """Send a heartbeat."""
        self.heartbeat(section, self.training.state.step)

    def heartbeat(self, section: Section, step: int | None = None) -> None:
        """Note that the main thread begins a section, and a step where it changes.

        `start` grants the long time again (a phase that recompiles), `load` the longest.
        """
        if step is not None and step != self._step:
            self._step, self._beats = step, 0
        # Compiled kernels are there once a step is through.
        self._warm = section != "start" and (self._warm or section == "optimizer")
        self._section = section
        self._beats += 1
        self._at = time.monotonic()

    @contextmanager
    def running(self) -> Iterator["Watchdog"]:
        """Watch inside the block."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        # Stacks of an earlier start would mislead.
        self._file.unlink(missing_ok=True)
        # The C timer needs an open file: with Python's lock held nobody can open one.
        held = self._file.with_suffix(".held.txt")
        self._at = time.monotonic()
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        with held.open("w", encoding="utf-8") as self._stacks:
            thread.start()
            try:
                yield self
            finally:
                self._closed.set()
                thread.join(2 * STORE_PATIENCE_S)
                faulthandler.cancel_dump_traceback_later()
                signal.setitimer(signal.ITIMER_REAL, 0)
                held.unlink(missing_ok=True)

    @property
    def allowance_s(self) -> float:
        """Silence that is granted now; more in a save, which waits for a disk and for the save before it."""
        if self._section == "load":
            return max(self._hang_after_s, LOAD_AFTER_S)
        if self._warm and self._section != "save":
            return self._hang_after_s
        return max(self._hang_after_s, self._start_after_s)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(self._poll_s):
            now = time.monotonic()
            if now - before > 4 * self._poll_s + 1:
                # The process was stopped (Ctrl-Z) and continues.
                self._at = now
            before = now
            self._ticks += 1
            # The last resort, if this thread never comes round again.
            seconds = self.allowance_s + 2 * GATHER_S + 4 * self._poll_s
            assert self._stacks is not None
            faulthandler.dump_traceback_later(seconds, file=self._stacks)
            # A second later, when the stacks are on the disk. SIGALRM's default ends the process.
            signal.setitimer(signal.ITIMER_REAL, seconds + 1)
            silent = now - self._at > self.allowance_s
            try:
                alarm = self._exchange(raise_alarm=silent)
            except DistError as error:
                if self._closed.is_set():
                    return  # a process that ends closes the store, which is no hang
                log.warning(
                    "watchdog: the processes' key-value store cannot be reached (%s); watching this process alone",
                    error,
                )
                # Asking took long: that must not look like a stopped process, and silence is measured anew.
                self._store, before = None, time.monotonic()
                continue
            if (silent or alarm) and not self._closed.is_set():
                self._give_up()
                return

    def _exchange(self, *, raise_alarm: bool) -> bool:
        """Publish this process's progress; return whether one of the processes has raised the alarm."""
        store = self._store
        if store is None:
            return False

        def exchange() -> bool:
            store.set(f"progress {self._rank}", json.dumps(asdict(self._progress())))
            if raise_alarm:
                store.set(ALARM, str(self._rank))
            return bool(store.check([ALARM]))

        return answered(exchange)

    def _progress(self) -> RankProgress:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  as faulthandler does
        code = frame.f_code if frame else None
        return RankProgress(
            rank=self._rank, host=socket.gethostname(), pid=os.getpid(), step=self._step, beats=self._beats,
            section=self._section, silent_s=round(time.monotonic() - self._at, 1), ticks=self._ticks,
            where=f"{Path(code.co_filename).name}:{code.co_name}" if code else "",
            waits=code is not None and "torch/distributed" in code.co_filename,
        )  # fmt: skip

    def _give_up(self) -> None:
        """Write the stacks, name the process that is stuck, end."""
        with self._file.open("w", encoding="utf-8") as file:
            file.write(f"{self._progress()}\n")
            file.flush()
            faulthandler.dump_traceback(file)
        stacks = textwrap.indent(self._file.read_text(encoding="utf-8", errors="replace"), "  ")
        log.warning("rank %s hangs with the run; its stacks, also in %s:\n%s", self._rank, self._file, stacks)
        verdict = self._verdict()
        # The accounts are written before the process ends.
        if self._on_hang is not None:
            self._on_hang()
        self._end(verdict)

    def _verdict(self) -> str:
        """Name the process that is stuck, on the first process that asks; empty on the others."""
        try:
            ranks = self._gathered()
            if self._store is None:
                return culprits(ranks, self._rank, self._file.parent)
            if self._store.add(SPEAKER, 1) == 1:
                # Wait until the others have read the store: one of them may serve it, and ends next.
                running = sum(one.runs for one in ranks.values())
                deadline = time.monotonic() + self._poll_s + 1
                while self._store.add(SPEAKER, 0) < running and time.monotonic() < deadline:
                    time.sleep(0.02)
                self._store.set(SAID, "yes")
                return culprits(ranks, self._rank, self._file.parent)
        except DistError as error:
            return f"the run hangs, and the store of the processes does not answer either ({error})"
        with contextlib.suppress(DistError):  # the process that keeps the store has ended
            self._store.wait([SAID], timedelta(seconds=STORE_PATIENCE_S))
        return ""

    def _gathered(self) -> dict[int, RankProgress]:
        """Last sign of life of every process; those that do not tick any more are marked."""
        store = self._store
        if store is None:
            return {self._rank: self._progress()}

        def read() -> dict[int, RankProgress]:
            there = [rank for rank in range(self._size) if store.check([f"progress {rank}"])]
            return {rank: RankProgress(**json.loads(store.get(f"progress {rank}"))) for rank in there}

        store.set(f"dumped {self._rank}", "yes")
        before = read()
        deadline = time.monotonic() + min(GATHER_S, self._hang_after_s)
        dumped = [f"dumped {rank}" for rank in range(self._size)]
        while time.monotonic() < deadline and not store.check(dumped):
            time.sleep(0.05)
        after = read()
        for rank, one in after.items():
            if rank != self._rank and rank in before and not store.check([f"dumped {rank}"]):
                after[rank] = one.stopped_since(before[rank])
        return after


def answered(ask: Callable[[], bool]) -> bool:
    """Ask the store, or raise its `DistError`; a `Store`'s own timeout does not count while its process is stopped."""
    answers: list[bool | DistError] = []

    def wait() -> None:
        try:
            answers.append(ask())
        except DistError as error:
            answers.append(error)

    thread = threading.Thread(target=wait, name="watchdog's question", daemon=True)
    thread.start()
    thread.join(STORE_PATIENCE_S)
    answer = answers[0] if answers else DistError(f"no answer in {STORE_PATIENCE_S:.0f} s")
    if isinstance(answer, DistError):
        raise answer
    return answer


def connect_store(rank: int) -> Store | None:
    """Connect to the store that the processes of the job met at; None without one.

    Source: `TORCHELASTIC_USE_AGENT_STORE`: torch.distributed.rendezvous, torch 2.13.
    """
    # A connection of its own: a `Store` answers one call at a time, so the main thread's cannot be shared.
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address is None or port is None:
        return None
    try:
        store = TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=STORE_PATIENCE_S))
    except DistError as error:
        raise RetryableError(f"rank {rank}: no answer from the store at {address}:{port} ({error})") from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"anadil watchdog {attempt}", store)


def watchdog_of(job: Job, group: Group, on_hang: Callable[[], None]) -> Watchdog:
    """Make the watchdog of a run; it calls `on_hang` before it ends a process."""
    return Watchdog(
        job.work, job.recipe.pretrain.faults.hang_after_s, rank=group.rank, size=group.size,
        store=connect_store(group.rank) if group.size > 1 else None, on_hang=on_hang,
    )  # fmt: skip


def _exit(message: str) -> None:
    """End this process at once, whatever its main thread waits for."""
    if message:
        report_failure(message, RetryableError.exit_code)
    for handler in logging.getLogger().handlers:
        # os._exit runs no clean-up, and the main thread cannot be waited for.
        handler.flush()
    os._exit(RetryableError.exit_code)
