"""SIGTERM, Ctrl-C and the end of the parent process."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any

from anadil.core.errors import Stopped
from anadil.core.processes import bind_to_parent
from anadil.runtime.environment import PARENT_VARIABLE

FORKED_WAIT_S = 0.01
"""How long a signal that came within a fork waits before it comes again; a fork takes about a millisecond."""


class _Fork:
    """Flag of a fork under way: Python prints and drops what a handler raises among the hooks of `os.fork`."""

    under_way = False


@cache
def _watch_forks() -> None:
    """Set `_Fork.under_way` around the hooks that are registered so far, those of logging among them."""
    # Once in a process, since hooks cannot be taken back. `partial` runs no bytecode, so no handler runs before its end.
    begins, ended = (partial(setattr, _Fork, "under_way", value) for value in (True, False))
    os.register_at_fork(before=begins, after_in_parent=ended, after_in_child=ended)


class Stop:
    """SIGTERM and Ctrl-C: handled at once by default, at a safe point inside `deferred`.

    At once means an exception, which a library's `except Exception` may swallow. So the signal is remembered, and `check` and
    the next `deferred` raise it again.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.unsaved = True
        """There is something to save inside `deferred`; where there is not, a signal does not wait."""
        self._deferred = False
        self._sender: threading.Thread | None = None

    def listen(self) -> None:
        """Take over both signals; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._receive)
            _watch_forks()

    @contextmanager
    def deferred(self) -> Iterator["Stop"]:
        """Inside, a signal only sets `signal`; the block polls it, saves and calls `leave`."""
        self.check()
        self._deferred = True
        self.unsaved = True
        try:
            yield self
        finally:
            self._deferred = False

    def check(self) -> None:
        """Raise the error of a signal that has come, if any: of one that was swallowed, or came late."""
        if self.signal is not None:
            self.leave()

    def leave(self) -> None:
        """Raise the error that belongs to the signal."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Stopped("stopped by SIGTERM; run the same command again to resume")

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        is_sent_again = self._sender is not None and self._sender.is_alive()
        if _Fork.under_way:
            if not is_sent_again:
                main = threading.get_ident()
                self._sender = threading.Thread(
                    target=self._send_until_taken, args=(main, number), daemon=True
                )
                self._sender.start()
            return
        second = self.signal is not None
        if second and is_sent_again:
            return
        self.signal = number
        if second or not (self._deferred and self.unsaved):
            self.leave()

    def _send_until_taken(self, main: int, number: int) -> None:
        # Once is not enough: Python handles a signal that comes as a call begins to block only when that call ends.
        while True:
            time.sleep(FORKED_WAIT_S)
            if self.signal is not None:
                return
            signal.pthread_kill(main, number)
            if signal.getsignal(number) != self._receive:
                return


@contextmanager
def handle_signals(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Inside, these handlers take the signals; only the main thread may, elsewhere nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handlers[number]) for number in handlers if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent() -> None:
    """Get SIGTERM when the `anadil run` that started us dies, so that no stage is orphaned."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent and not bind_to_parent(int(parent), signal.SIGTERM):
        raise Stopped("the run that started this stage has ended; start it again")
