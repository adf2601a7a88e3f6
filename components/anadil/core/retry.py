"""Calls that are tried again."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from anadil.core.errors import RetryableError

log = logging.getLogger(__name__)

T = TypeVar("T")


def retried(
    call: Callable[[], T],
    attempts: int,
    pause_s: float = 0.0,
    errors: type[Exception] | tuple[type[Exception], ...] = RetryableError,
) -> T:
    """Result of a call that is made up to `attempts` times; the last error is raised.

    Args:
        pause_s: Before the second attempt; doubled before each further one.
        errors: Failures after which it is called again. Each is logged.
    """
    last = ""
    for attempt in range(1, attempts):
        try:
            return call()
        except errors as error:
            text = "the same again" if str(error) == last else str(error)
            log.warning("%s; attempt %d of %d", text, attempt, attempts)
            last = str(error)
            time.sleep(pause_s * 2 ** (attempt - 1))
    return call()
