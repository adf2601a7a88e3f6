"""AWS services through boto3: clients with bounded patience, and errors that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, RetryableError

ATTEMPTS = 8
"""Attempts for a call, the first included: throttling is waited out for about a minute."""
DENIED = ("AccessDenied", "UnauthorizedOperation", "AuthorizationError", "NotAuthorized")
EXPIRED = (
    "ExpiredToken",
    "InvalidClientTokenId",
    "UnrecognizedClient",
    "InvalidSignature",
    "SignatureDoesNotMatch",
    "RequestExpired",
    "InvalidToken",
)
LIMITS = ("ResourceLimitExceeded", "LimitExceeded", "QuotaExceeded", "ServiceLimit", "FileSystemLimit")
BUSY = ("Throttling", "ThrottledException", "TooManyRequests", "RequestLimitExceeded", "RateExceeded")
NEEDS_BOTO3 = "needs boto3: pip install 'anadil[launch]'"


def client(service: str, region: str | None = None) -> Any:
    """A client of a service; throttled and failed calls are made again by botocore.

    Args:
        service: As boto3 calls it, such as `sagemaker`.
        region: Left out, that of the environment.

    Raises:
        PreflightError: boto3, a region or the profile is missing.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise PreflightError(f"{service} {NEEDS_BOTO3}") from None
    config = Config(
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS}, connect_timeout=10, read_timeout=60
    )
    with explained(service):
        try:
            return boto3.Session().client(service, region_name=region, config=config)
        except ValueError as error:
            raise PreflightError(f"{service}: {error}; correct AWS_ENDPOINT_URL") from None


def code_of(error: Exception) -> str:
    """AWS's own word for an error, such as `ResourceInUse`."""
    response: Any = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def message_of(error: Exception) -> str:
    """AWS's own sentence for an error."""
    response: Any = getattr(error, "response", {})
    return " ".join(str(response.get("Error", {}).get("Message", "") or error).split())


def is_missing(error: Exception) -> bool:
    """Whether the thing that was asked for is not there."""
    # SageMaker says "ValidationException: Requested resource not found." and "Could not find ...".
    words = message_of(error).lower()
    absent = "not found" in words or "could not find" in words
    return "NotFound" in code_of(error) or (code_of(error) == "ValidationException" and absent)


def differences(asked: Any, there: Any, path: str = "") -> list[str]:
    """Where what is there is not what is asked for; what AWS adds to it does not count.

    Args:
        asked: A request, or a part of one.
        there: What describes the thing, in the same form.
        path: Of the part.
    """
    if isinstance(asked, dict):
        held = there if isinstance(there, dict) else {}
        return [
            text
            for key, value in asked.items()
            for text in differences(value, held.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(asked, list) and isinstance(there, list) and len(asked) == len(there):
        pairs = enumerate(zip(asked, there, strict=True))
        return [text for i, (one, other) in pairs for text in differences(one, other, f"{path}.{i}")]
    return [] if asked == there else [f"{path}: {str(there)[:60]} instead of {str(asked)[:60]}"]


@contextmanager
def explained(what: str, action: str = "") -> Iterator[None]:
    """Turn boto3's errors into ours.

    Args:
        what: What the call is about, the beginning of the message.
        action: IAM action that the call needs, such as `sagemaker:CreateTrainingJob`.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        HTTPClientError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
    )
    from botocore.exceptions import ConnectionError as EndpointError

    try:
        yield
    except ClientError as error:
        raise _client_error(what, action, error) from None
    except (NoCredentialsError, PartialCredentialsError):
        raise PreflightError(
            f"{what}: no AWS credentials; set AWS_PROFILE, or run with a role (IRSA, Pod Identity)"
        ) from None
    except NoRegionError:
        raise PreflightError(f"{what}: no AWS region; name it, or set AWS_DEFAULT_REGION") from None
    except ParamValidationError as error:
        raise RecipeError(f"{what}: {' '.join(str(error).split())}") from None
    except (EndpointError, HTTPClientError) as error:
        raise RetryableError(f"{what}: {error}; run the same command again") from None
    except BotoCoreError as error:
        raise PreflightError(f"{what}: {error}; sign in again or correct the AWS configuration") from None


def _client_error(what: str, action: str, error: Exception) -> AnadilError:
    code, said = code_of(error), message_of(error)
    response: Any = getattr(error, "response", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if any(word in code for word in EXPIRED):
        return PreflightError(f"{what}: AWS credentials are expired or wrong ({code}); sign in again")
    if any(word in code for word in DENIED):
        return PreflightError(f"{what}: access denied; grant {action or 'the action'} ({said})")
    if any(word in code for word in BUSY):
        return RetryableError(f"{what}: throttled ({code}); run the same command again")
    if any(word in code for word in LIMITS):
        return PreflightError(f"{what}: quota reached: {said}; ask for more in the console of Service Quotas")
    if is_missing(error):
        return DataError(f"{what}: does not exist ({said}); check name and region")
    if status >= 500:
        return RetryableError(f"{what}: {code}; AWS failed for now, run the same command again")
    return RecipeError(f"{what}: AWS refused: {code}: {said}")
