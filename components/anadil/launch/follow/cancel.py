"""Ending a job when its launcher is told to end.

A terminated pipeline gives its step about a second: Argo signals the process group, and the
container goes when KFP's own launcher has died. So the first thing is one DELETE.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from anadil.errors import AnadilError, Stopped
from anadil.launch.api.client import ONCE, Api
from anadil.launch.api.kinds import Kind
from anadil.launch.ends import AGAIN

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Cancelled(BaseException):
    """Not an Exception, so that nobody on the way takes it for an error of theirs."""


@contextmanager
def cancelling(api: Api, kind: Kind, name: str) -> Iterator[None]:
    """Inside, SIGTERM and Ctrl-C delete the job of this name.

    Raises:
        Stopped: After SIGTERM.
        KeyboardInterrupt: After Ctrl-C.
    """
    received: list[int] = []
    # With connections of its own: those of `api` may be in the midst of an answer.
    delete = _deleting(api.apart(), kind, name)

    def receive(number: int, _frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise _Cancelled

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, receive) for number in SIGNALS} if is_main else {}
    try:
        yield
    except _Cancelled:
        delete()
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise Stopped(f"stopped by SIGTERM; {name} was told to end, and saves first; {AGAIN}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _deleting(api: Api, kind: Kind, name: str) -> Callable[[], None]:
    def delete() -> None:
        # Whatever has the name: a job is the same work, and the answer to its creation may be lost.
        for patience in (ONCE, api.patience):
            try:
                api.delete(kind, name, patience=patience)
            except AnadilError as error:
                failed = error
            else:
                return
        log.warning("%s cannot be deleted, run `anadil stop %s`: %s", name, name, failed)

    return delete
