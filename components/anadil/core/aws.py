"""AWS through boto3: clients with bounded retries, and one translation of its errors into ours."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, RetryableError
from anadil.core.install import install

ATTEMPTS = 8
"""Attempts for a call, the first included: throttling is waited out for about a minute."""


class AwsRefusal(NamedTuple):
    """Meaning of an answer of AWS."""

    error: type[AnadilError]
    text: str
    codes: tuple[str, ...]
    """Parts of AWS's error codes."""
    status: int | None = None
    """HTTP status that means the same, whatever the code."""


class NoBucketError(DataError):
    """There is no such bucket."""


REFUSALS = (
    AwsRefusal(
        PreflightError, "AWS credentials are expired or wrong ({code}); sign in again",
        ("ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignature", "InvalidToken",
         "RequestExpired", "SignatureDoesNotMatch", "UnrecognizedClient"),
    ),
    AwsRefusal(
        PreflightError, "the clock of this machine is wrong ({code}: {said}); set it, such as by NTP",
        ("RequestTimeTooSkewed",),
    ),
    AwsRefusal(
        PreflightError,
        "lies in an archive ({said}); restore it first (aws s3api restore-object), or copy it to another storage class",
        ("InvalidObjectState",),
    ),
    # Below status 500: bytes that were damaged or late on the way, or a request that crossed another.
    # Source: Amazon S3 API Reference, List of error codes.
    AwsRefusal(
        RetryableError, "{code}; what was sent did not arrive whole, run the same command again",
        ("BadDigest", "IncompleteBody", "OperationAborted", "RequestTimeout", "XAmzContentChecksumMismatch",
         "XAmzContentSHA256Mismatch"),
    ),
    AwsRefusal(
        RetryableError, "throttled ({code}); run the same command again",
        ("Throttling", "ThrottledException", "TooManyRequests", "RequestLimitExceeded", "RateExceeded", "SlowDown"), 429,
    ),
    AwsRefusal(
        PreflightError, "quota reached: {said}; ask for more in the console of Service Quotas",
        ("ResourceLimitExceeded", "LimitExceeded", "QuotaExceeded", "ServiceLimit", "FileSystemLimit"),
    ),
    AwsRefusal(NoBucketError, "does not exist; check {place} ({said})", ("NoSuchBucket",)),
    AwsRefusal(DataError, "does not exist; check {place} ({said})", ("NoSuch", "NotFound"), 404),
    AwsRefusal(
        PreflightError, "access denied ({code}); grant {action} ({said})",
        ("AccessDenied", "UnauthorizedOperation", "AuthorizationError", "NotAuthorized"), 403,
    ),
)  # fmt: skip
"""The first that fits counts."""


class DamagedError(RetryableError):
    """An object's bytes came damaged or cut off."""


def aws_client(service: str, region: str | None = None, attempts: int = ATTEMPTS) -> Any:
    """A client of a service by boto3's name; botocore repeats throttled and failed calls.

    AWS_MAX_ATTEMPTS goes before `attempts`, the environment's region counts where none is given.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise PreflightError(f"{service} needs boto3; {install('s3')}") from None
    retries: dict[str, Any] = {"mode": "standard"}
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        retries["total_max_attempts"] = attempts
    config = Config(retries=retries, connect_timeout=10, read_timeout=60)
    with aws_errors(service):
        try:
            return boto3.Session().client(service, region_name=region, config=config)
        except ValueError as error:
            variable = f"AWS_ENDPOINT_URL_{service.upper()}"
            raise PreflightError(f"{service}: {error}; correct {variable} or AWS_ENDPOINT_URL") from None


def error_code(error: Exception) -> str:
    """AWS's own word for an error, such as `ResourceInUse`; else the whole text."""
    written = re.search(r"An error occurred \((\w+)\)", str(error))  # where a transfer has lost the answer
    return str(_response(error).get("Error", {}).get("Code", "")) or (written[1] if written else str(error))


def error_status(error: Exception) -> int:
    """The HTTP status of an answer, 0 where there was none."""
    status = int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    written = re.search(r"\((\d{3})\)", str(error))  # boto3's transfers say no more than that
    return status or (int(written[1]) if written else 0)


@contextmanager
def aws_errors(
    what: str, action: str = "the action", *, service: str = "AWS", place: str = "name and region",
    invalid: type[AnadilError] = RecipeError, refused: type[AnadilError] = RecipeError,
) -> Iterator[None]:  # fmt: skip
    """Turn boto3's errors into ours.

    Args:
        what: What the call is about, the beginning of the message.
        action: IAM action that the call needs, such as `sagemaker:CreateTrainingJob`.
        service: What did not answer, for the message.
        place: What to check where something does not exist.
        invalid: Error where boto3 itself refuses the arguments.
        refused: Error of a refusal that says nothing else.
    """
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as raised

    try:
        yield
    except (raised.ClientError, Boto3Error) as error:
        raise _refusal(error, what, refused, action=action, place=place, service=service) from None
    except (raised.NoCredentialsError, raised.PartialCredentialsError):
        raise PreflightError(
            f"{what}: no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or run with a role (IRSA, Pod Identity)"
        ) from None
    except raised.NoRegionError:
        raise PreflightError(f"{what}: no AWS region; name it, or set AWS_DEFAULT_REGION") from None
    except raised.ParamValidationError as error:
        raise invalid(f"{what}: {' '.join(str(error).split())}; check {place}") from None
    except raised.SSLError as error:
        raise PreflightError(f"{what}: {error}; set AWS_CA_BUNDLE to the endpoint's certificates") from None
    except (
        raised.FlexibleChecksumError, raised.IncompleteReadError, raised.ResponseStreamingError,
    ) as error:  # fmt: skip
        raise DamagedError(f"{what}: {error}") from None
    except (raised.ConnectionError, raised.HTTPClientError) as error:
        raise RetryableError(
            f"{what}: {error}; {service} did not answer, run the same command again"
        ) from None
    except raised.BotoCoreError as error:
        raise PreflightError(f"{what}: {error}; sign in again or correct the AWS configuration") from None


def request_differences(asked: Any, there: Any, path: str = "") -> list[str]:
    """Differences of an object from the request for it, below a path; what AWS adds does not count."""
    if isinstance(asked, dict):
        present = there if isinstance(there, dict) else {}
        return [
            text
            for key, value in asked.items()
            for text in request_differences(value, present.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(asked, list) and isinstance(there, list) and len(asked) == len(there):
        pairs = enumerate(zip(asked, there, strict=True))
        return [text for i, (one, other) in pairs for text in request_differences(one, other, f"{path}.{i}")]
    return [] if asked == there else [f"{path}: {str(there)[:60]} instead of {str(asked)[:60]}"]


def _refusal(error: Exception, what: str, refused: type[AnadilError], **words: str) -> AnadilError:
    code, status = error_code(error), error_status(error)
    said = " ".join(str(_response(error).get("Error", {}).get("Message", "") or error).split())
    # SageMaker says "ValidationException: Requested resource not found." and "Could not find ...".
    absent = code == "ValidationException" and re.search("not found|could not find", said, re.IGNORECASE)
    for refusal in REFUSALS:
        is_missing = refusal.error is DataError and (absent or "NotFound" in code)
        if is_missing or status == refusal.status or any(word in code for word in refusal.codes):
            return refusal.error(f"{what}: {refusal.text.format(code=code, said=said, **words)}")
    if status >= 500 or not status:
        return RetryableError(
            f"{what}: {code}; {words['service']} failed for now, run the same command again"
        )
    return refused(f"{what}: {words['service']} refused: {code}: {said}")


def _response(error: Exception) -> dict[str, Any]:
    # boto3's transfers raise another error, whose context is the answer.
    response: Any = getattr(error, "response", None) or getattr(error.__context__, "response", None)
    return response if isinstance(response, dict) else {}
