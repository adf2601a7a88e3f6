"""One translation of AWS's errors: by whose turn it is to act."""

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore import exceptions

from anadil.artifacts.s3 import s3_errors
from anadil.core.aws import DamagedError, aws_errors
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, RetryableError


def answer(code: str, said: str = "", status: int = 400) -> Exception:
    """An answer of AWS that refuses."""
    error: Exception = exceptions.ClientError(
        {"Error": {"Code": code, "Message": said}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Call"
    )
    return error


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (answer("AccessDeniedException", "User x may not"), PreflightError, "grant iam:PassRole (User x may not)"),
        (answer("403", "Forbidden", 403), PreflightError, "access denied (403); grant iam:PassRole"),
        (answer("ExpiredTokenException"), PreflightError, "sign in again"),
        (answer("SignatureDoesNotMatch", status=403), PreflightError, "sign in again"),
        (answer("RequestTimeTooSkewed", "too large", 403), PreflightError, "the clock of this machine is wrong"),
        (answer("InvalidObjectState", "not valid", 403), PreflightError, "lies in an archive (not valid); restore it"),
        (answer("ResourceLimitExceeded", "limit is 0 Instances"), PreflightError, "quota reached: limit is 0"),
        (answer("ThrottlingException"), RetryableError, "throttled"),
        (answer("RequestLimitExceeded"), RetryableError, "throttled"),
        (answer("BadDigest"), RetryableError, "BadDigest; what was sent did not arrive whole"),
        (answer("InternalFailure", status=500), RetryableError, "InternalFailure; AWS failed for now"),
        (answer("ResourceNotFound"), DataError, "does not exist; check name and region"),
        (answer("ValidationException", "Requested resource not found."), DataError, "does not exist"),
        (answer("404", "Not Found", 404), DataError, "does not exist"),
        (answer("ValidationException", "Could not assume role"), RecipeError, "AWS refused: ValidationException: Could"),
        (S3UploadFailedError("An error occurred (403) when calling"), PreflightError, "access denied"),
        (S3UploadFailedError("An error occurred (BadDigest) when"), RetryableError, "job x: BadDigest; what was sent"),
        (exceptions.NoCredentialsError(), PreflightError, "no AWS credentials; set AWS_PROFILE"),
        (exceptions.NoRegionError(), PreflightError, "no AWS region"),
        (exceptions.ParamValidationError(report="Name: too long"), RecipeError, "Name: too long; check name"),
        (exceptions.SSLError(endpoint_url="https://x", error="self-signed"), PreflightError, "set AWS_CA_BUNDLE"),
        (exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), DamagedError, "1 read"),
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), RetryableError, "AWS did not answer"),
        (exceptions.SSOTokenLoadError(error_msg="gone"), PreflightError, "sign in again"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_an_error_says_whose_turn_it_is(raised: Exception, error: type[AnadilError], message: str) -> None:
    with pytest.raises(error) as caught, aws_errors("job x", "iam:PassRole"):
        raise raised

    assert str(caught.value).startswith("job x: ")
    assert message in str(caught.value)


def test_where_storage_refuses_arguments_the_uri_or_the_server_is_wrong() -> None:
    with pytest.raises(DataError, match="check bucket and key"), s3_errors("s3://b/k"):
        raise exceptions.ParamValidationError(report="Invalid bucket name")
    with pytest.raises(PreflightError, match="storage refused: MethodNotAllowed"), s3_errors("s3://b/k"):
        raise answer("MethodNotAllowed", status=405)
