"""A check that ends in time and never raises, whatever the other side does."""

import queue
import threading
from collections.abc import Callable, Iterable

from anadil.cli.doctor.local import CheckResult, failed, skipped
from anadil.core.errors import AnadilError
from anadil.launch.kubernetes.api.client import Refused

TIMEOUT_S = 15.0
"""Longest time of one check; each of its questions has its own, shorter limit."""

CheckFunction = Callable[[], Iterable[CheckResult]]


def with_timeout(name: str, work: CheckFunction, seconds: float = TIMEOUT_S) -> list[CheckResult]:
    """The lines of a check, or one that says why there are none.

    Args:
        name: Of the line that is printed where `work` gives none.
        work: Runs in a thread of its own, which is left behind when the time is over.
        seconds: The time that it has.
    """
    answers: queue.Queue[list[CheckResult]] = queue.Queue()
    # A daemon, because a name server that says nothing cannot be interrupted.
    threading.Thread(target=lambda: answers.put(_checks_or_reason(name, work)), daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        remedy = "see whether a firewall or a proxy drops the connection"
        return [failed(name, f"no answer in {seconds:.0f} s", remedy)]


def _checks_or_reason(name: str, work: CheckFunction) -> list[CheckResult]:
    try:
        return list(work())
    except Refused as error:
        if error.answer.status == 403:
            return [skipped(name, "may not be read with your rights", "ask whoever runs the cluster")]
        return [failed(name, f"the API answers {error}", "see the API server's health")]
    except AnadilError as error:
        return [failed(name, str(error), "see the message")]
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        # The border to servers of other people: an answer of another form is reported, not a bug of ours.
        return [
            failed(name, f"an answer that cannot be read ({error!r})", "see whether a proxy answers instead")
        ]
