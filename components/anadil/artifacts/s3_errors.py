"""Errors of S3 and of what speaks its protocol, as ours: by whose turn it is to act."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from anadil.core.errors import AnadilError, DataError, PreflightError, RetryableError

log = logging.getLogger(__name__)

DOWNLOADS = 3
"""Times that an object is fetched whose bytes come damaged or cut off."""

CROSSED = {
    "BadDigest", "IncompleteBody", "OperationAborted", "RequestTimeout", "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}  # fmt: skip
"""Codes with a status below 500 of requests whose bytes were damaged or late on the way, or crossed another.
Source: Amazon S3 API Reference, List of error codes."""

T = TypeVar("T")


class DamagedError(RetryableError):
    """An object's bytes came damaged or cut off."""


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


def code_of(error: Exception) -> tuple[str, int]:
    """S3's own word for an error, and the HTTP status; 0 where there was no answer."""
    if not hasattr(error, "response") and hasattr(error.__context__, "response"):
        error = cast("Exception", error.__context__)  # what boto3 makes a sentence of
    response: Any = getattr(error, "response", {})
    code = str(response.get("Error", {}).get("Code", "")) or str(error)
    return code, int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn boto3's errors into ours: what can be retried, what the user must grant or correct."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
        ResponseStreamingError,
        SSLError,
    )
    from botocore.exceptions import ConnectionError as EndpointError

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError):
        raise PreflightError(
            f"{uri}: no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or run with a role (IRSA, Pod Identity)"
        ) from None
    except (ClientError, Boto3Error) as error:
        raise _client_error(uri, error) from None
    except ParamValidationError as error:
        raise DataError(f"{uri}: {' '.join(str(error).split())}; correct the URI") from None
    except SSLError as error:
        raise PreflightError(f"{uri}: {error}; set AWS_CA_BUNDLE to the endpoint's certificates") from None
    except (FlexibleChecksumError, IncompleteReadError, ResponseStreamingError) as error:
        raise DamagedError(f"{uri}: {error}") from None
    except (EndpointError, HTTPClientError) as error:
        raise RetryableError(f"{uri}: {error}; storage did not answer, run the same command again") from None
    except BotoCoreError as error:
        raise PreflightError(f"{uri}: {error}; correct the AWS configuration") from None


def _client_error(uri: str, error: Exception) -> AnadilError:
    code, status = code_of(error)
    if code in CROSSED:
        return RetryableError(
            f"{uri}: {code}; what was sent did not arrive whole, run the same command again"
        )
    if "NoSuchBucket" in code or "NoSuchKey" in code or status == 404 or "(404)" in code:
        return DataError(f"{uri}: does not exist; check bucket and key")
    if status == 403 or "AccessDenied" in code or "(403)" in code:
        return PreflightError(f"{uri}: access denied ({code}); grant s3:GetObject, PutObject and ListBucket")
    if status >= 500 or not status:
        return RetryableError(f"{uri}: {code}; storage failed for now, run the same command again")
    return PreflightError(f"{uri}: S3 refused: {code}")
