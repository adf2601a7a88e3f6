"""End a job when its launcher is told to end."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from anadil.core.errors import AnadilError, Stopped
from anadil.launch.exit_codes import RESUME_HINT
from anadil.launch.kubernetes.api.client import ONCE, JobApi
from anadil.launch.kubernetes.jobs.ledger import JobLedger
from anadil.runtime.signals import handle_signals

log = logging.getLogger(__name__)

CANCEL_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Cancelled(BaseException):
    """Not an Exception, so that nobody on the way takes it for an error of theirs."""


@contextmanager
def cancel_on_signal(api: JobApi, name: str, ledger: JobLedger) -> Iterator[None]:
    """Delete the job of this name on SIGTERM and Ctrl-C, if this launcher made it.

    Raises:
        Stopped: After SIGTERM.
        KeyboardInterrupt: After Ctrl-C.
    """
    received: list[int] = []
    # With connections of its own: those of `api` may be in the midst of an answer.
    apart = api.apart()

    def receive(number: int, _frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise _Cancelled

    with handle_signals(dict.fromkeys(CANCEL_SIGNALS, receive)):
        try:
            yield
        except _Cancelled:
            # A terminated pipeline gives its step about a second: Argo signals the process group, and the container
            # goes when KFP's own launcher has died. So the first thing is one DELETE.
            if _deleted(apart, name, ledger):
                text = f"{name} was told to end, and saves what it has trained; {RESUME_HINT}"
            else:
                text = f"{name} runs on, because another launcher made it; `anadil stop {name}` ends it"
            if received[0] == signal.SIGINT:
                log.info("%s", text)
                raise KeyboardInterrupt from None
            raise Stopped(f"stopped by SIGTERM; {text}") from None


def _deleted(api: JobApi, name: str, ledger: JobLedger) -> bool:
    """Delete the job; return False where it is another launcher's."""
    for retry_policy in (ONCE, api.retry_policy):
        api.retry_policy = retry_policy
        try:
            if not ledger.is_known and (job := api.get(name)):
                ledger.see(job)  # the answer to its creation may be lost, or have been that it is there
            if ledger.is_known and not ledger.is_owner:
                return False
            api.delete(name)
        except AnadilError as error:
            failed = error
        else:
            return True
    log.warning("%s cannot be deleted, run `anadil stop %s`: %s", name, name, failed)
    return True
