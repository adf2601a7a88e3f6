"""Pieces of an object of S3.

Each is asked for on the condition that the object is still the one that was planned for. Its place is checked.
"""

from http import HTTPStatus

from anadil.artifacts.ranged import changed, check_place
from anadil.artifacts.s3 import s3_client, s3_errors, split_uri
from anadil.core.aws import error_status

CHANGED = (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
"""Statuses of a server's answer where the object is no longer the one that was asked for."""


class S3Ranges:
    """Pieces of one object; see `Ranges`."""

    def __init__(self, uri: str, version: str) -> None:
        """Ask nothing yet; `version` is ETag and size, joined by `-`."""
        self._uri = uri
        self._tag, _, size = version.rpartition("-")
        self.size = int(size)

    def fetch(self, start: int, num_bytes: int) -> bytes:
        """Return a piece; see `Ranges.fetch`."""
        with s3_errors(self._uri):
            return self._answer(start, num_bytes)

    def _answer(self, start: int, num_bytes: int) -> bytes:
        bucket, key = split_uri(self._uri)
        client = s3_client()
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{start + num_bytes - 1}"}
        try:
            answer = client.get_object(**asked, IfMatch=self._tag)
        except client.exceptions.ClientError as error:
            if error_status(error) in CHANGED:
                raise changed(self._uri) from None
            raise
        try:
            place = str(answer.get("ContentRange", ""))
            total = place.rpartition("/")[2]
            # Some servers know no conditions; then the answer itself tells.
            if answer["ETag"] != self._tag or (total.isdigit() and int(total) != self.size):
                raise changed(self._uri)
            check_place(self._uri, place, start, is_complete=answer["ContentLength"] == num_bytes)
            data: bytes = answer["Body"].read()
        finally:
            answer["Body"].close()
        return data
