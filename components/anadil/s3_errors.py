"""Calls of S3, and of what speaks its protocol: errors as ours, and damaged bytes fetched again."""

import functools
import logging
from collections.abc import Callable
from typing import TypeVar

from anadil.core.aws import DamagedError, aws_errors, error_code, error_status
from anadil.errors import DataError, PreflightError, RetryableError

log = logging.getLogger(__name__)

DOWNLOADS = 3
"""Times that an object is fetched whose bytes come damaged or cut off."""

T = TypeVar("T")

explained = functools.partial(
    aws_errors,
    action="s3:GetObject, PutObject and ListBucket",
    service="storage",
    place="bucket and key",
    invalid=DataError,
    refused=PreflightError,
)
"""Context manager of a URI: turn boto3's errors into ours."""


def code_of(error: Exception) -> tuple[str, int]:
    """S3's own word for an error, and the HTTP status; 0 where there was no answer."""
    return error_code(error), error_status(error)


def fetched(uri: str, fetch: Callable[[], T]) -> T:
    """What `fetch` gives; tried again where the bytes come damaged or cut off.

    Raises:
        RetryableError: They do so each time.
    """
    for attempt in range(1, DOWNLOADS + 1):
        try:
            with explained(uri):
                return fetch()
        except DamagedError as error:
            log.warning("%s; time %d of %d", error, attempt, DOWNLOADS)
    raise RetryableError(
        f"{uri}: its bytes came damaged or cut off {DOWNLOADS} times; look at the network and any proxy, "
        "then run the same command again"
    )
