"""Waiting for AWS to make or remove a part: told when its state changes, bounded, with its failure."""

import logging
import time
from collections.abc import Callable

from anadil.core.format import human_seconds
from anadil.errors import PreflightError, RetryableError

log = logging.getLogger(__name__)

POLL_S = 15.0
SAY_S = 300.0
"""Time after which an unchanged state is told again."""


def until(
    what: str,
    look: Callable[[], tuple[str, str]],
    *,
    good: tuple[str, ...],
    bad: tuple[str, ...],
    patience_s: float,
) -> str:
    """Ask for the state of a part until it is as wished.

    Args:
        what: The part, for messages.
        look: What gives its state, and what AWS says to it.
        good: States that end the waiting.
        bad: States that never become good.
        patience_s: Longest time.

    Raises:
        PreflightError: It is in a bad state.
        RetryableError: It takes too long.
    """
    started = said = time.monotonic()
    before = ""
    while True:
        state, message = look()
        now = time.monotonic()
        if state != before or now - said > SAY_S:
            log.info(
                "%s: %s%s (%s)", what, state, f", {message}" if message else "", human_seconds(now - started)
            )
            before, said = state, now
        if state in good:
            return state
        if state in bad:
            raise PreflightError(
                f"{what}: {state}: {message or 'AWS gives no reason'}; remove it in the console and run the same command again"
            )
        if now - started > patience_s:
            raise RetryableError(
                f"{what}: still {state} after {human_seconds(patience_s)}; run the same command again to go on waiting"
            )
        time.sleep(POLL_S)
