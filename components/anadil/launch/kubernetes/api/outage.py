"""How long somebody who follows an object bears an API that does not answer."""

import logging
import time

from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.launch.kubernetes.api.errors import AGAIN

log = logging.getLogger(__name__)

API_S = 1_800.0
"""An upgrade of a control plane takes some minutes. Assumption."""


class Outage:
    """The time since the last answer.

    A right, a token or a certificate that was good is refused while an API server restarts, so a refusal after the first
    answer is borne like silence.
    """

    def __init__(self, limit_s: float = API_S) -> None:
        """Begin to count.

        Args:
            limit_s: Longest time without an answer.
        """
        self._limit_s = limit_s
        self._answered_s = time.monotonic()
        self.has_answered = False
        """True if the API has ever answered."""
        self._said = ""

    def end(self) -> None:
        """Note an answer."""
        self._answered_s = time.monotonic()
        self.has_answered = True
        self._said = ""

    def bear(self, what: str, error: AnadilError, remedy: str) -> None:
        """Say once that an object cannot be seen.

        Args:
            what: Kind or name of the object.
            error: Of the API.
            remedy: What to do once this has taken too long.

        Raises:
            PreflightError: It was refused from the first, or for too long.
            RetryableError: The API was silent for too long.
        """
        refused, text = isinstance(error, PreflightError), str(error).removesuffix(AGAIN)
        if (refused and not self.has_answered) or time.monotonic() - self._answered_s > self._limit_s:
            raise error if refused else RetryableError(f"{what}: {text}; {remedy}")
        if text != self._said:
            log.warning("%s runs on, but cannot be seen: %s", what, text)
            self._said = text
