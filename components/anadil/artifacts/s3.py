"""Objects of S3, or of a server that speaks its protocol, through the calls of `storage.LocalStore`."""

import fnmatch
import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from anadil.artifacts.ranged import changed, check_place
from anadil.artifacts.uri import MANIFEST, ConditionsError, Count, join
from anadil.core.aws import DamagedError, aws_client, aws_errors, error_code, error_status
from anadil.core.errors import DataError, PreflightError, RetryableError
from anadil.core.format import MIB

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""Attempts for a call, the first included, with exponential pauses between them."""

DOWNLOADS = 3
"""Times that an object is fetched whose bytes come damaged or cut off."""

COPY_PART_BYTES = 64 * MIB
"""Copied at a time within the storage; S3 takes 5 MiB to 5 GiB."""

T = TypeVar("T")

s3_errors = functools.partial(
    aws_errors, action="s3:GetObject, PutObject and ListBucket", service="storage", place="bucket and key",
    invalid=DataError, refused=PreflightError,
)  # fmt: skip
"""Context manager of a URI: turn boto3's errors into ours."""


class S3:
    """Objects of an S3 bucket; credentials come from the environment, as boto3 finds them."""

    def __init__(self) -> None:
        self._client: Any = s3_client()

    def exists(self, uri: str) -> bool:
        """Return whether an object exists."""
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            answer = self._client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
        return any(item["Key"] == key for item in answer.get("Contents", ()))

    def read(self, uri: str) -> bytes:
        """The bytes of one small object."""
        return self.read_tagged(uri)[0]

    def part(self, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        """Return some bytes of an object and its size; a negative start counts from its end."""
        bucket, key = split_uri(uri)
        byte_range = f"bytes={start}" if start < 0 else f"bytes={start}-{start + num_bytes - 1}"
        with s3_errors(uri):
            try:
                response = self._client.get_object(Bucket=bucket, Key=key, Range=byte_range)
            except self._client.exceptions.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 416:
                    raise
                # No byte of it stands there: it is empty, or ends before.
                head = self._client.head_object(Bucket=bucket, Key=key)
                return b"", int(head["ContentLength"])
            # A server that knows no ranges sends the whole object, and no size.
            size = str(response.get("ContentRange", "")).rpartition("/")[2] or response["ContentLength"]
            return response["Body"].read(num_bytes), int(size)

    def write(self, uri: str, content: bytes) -> None:
        """One object; S3 shows it whole or not at all."""
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def write_if(self, uri: str, content: bytes, tag: str) -> str | None:
        """Write an object if it is as it was seen last.

        `tag` comes from `read_tagged` or this call; empty for an object that is not there.

        Returns:
            Its new tag; None where it was written or removed meanwhile, and is left as it is.
        """
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            try:
                response = self._client.put_object(Bucket=bucket, Key=key, Body=content, **_condition(tag))
            except self._client.exceptions.ClientError as error:
                if _was_changed(error, uri):
                    return None
                raise
        return str(response["ETag"])

    def upload(self, path: Path, uri: str, tag: str | None, count: Count | None = None) -> bool:
        """Send one file, in parts where it is large, if the object is as it was seen last.

        Args:
            tag: From `tags`; empty for an object that is not there, None for whatever is there.
            count: Gets the bytes of each piece; raises to stop.

        Returns:
            False if it was changed meanwhile, and is left as it is.
        """
        return self._sent(
            uri, tag, lambda bucket, key: self._client.upload_file(str(path), bucket, key, Callback=count)
        )

    def copy(self, source: str, uri: str, tag: str | None) -> bool:
        """Copy an object within the storage; `tag` and the answer are those of `upload`."""
        from boto3.s3.transfer import TransferConfig

        self.size(source)  # its absence is not to be taken for a change of the target
        from_bucket, from_key = split_uri(source)
        # In parts whatever the size: servers honour conditions there that ignore them in CopyObject.
        config = TransferConfig(multipart_threshold=1, multipart_chunksize=COPY_PART_BYTES)
        place = {"Bucket": from_bucket, "Key": from_key}
        return self._sent(uri, tag, lambda bucket, key: self._client.copy(place, bucket, key, Config=config))

    def _sent(self, uri: str, tag: str | None, transfer: Callable[[str, str], object]) -> bool:
        """Transfer to an object on the condition of a tag; return False if it was changed meanwhile."""
        from boto3.exceptions import S3UploadFailedError

        bucket, key = split_uri(uri)
        with s3_errors(uri), self._on_condition(bucket, key, tag):
            try:
                transfer(bucket, key)
            except (S3UploadFailedError, self._client.exceptions.ClientError) as error:
                if tag is None or not _was_changed(error, uri):
                    raise
                return False
        return True

    @contextmanager
    def _on_condition(self, bucket: str, key: str, tag: str | None) -> Iterator[None]:
        """Let transfers to an object carry the condition of a tag, which s3transfer does not pass on."""
        events = [f"before-parameter-build.s3.{call}" for call in ("PutObject", "CompleteMultipartUpload")]

        def add_condition(params: dict[str, Any], **_: object) -> None:
            if tag is not None and (params["Bucket"], params["Key"]) == (bucket, key):
                params.update(_condition(tag))

        for event in events:
            self._client.meta.events.register(event, add_condition)
        try:
            yield
        finally:
            for event in events:
                self._client.meta.events.unregister(event, add_condition)

    def read_tagged(self, uri: str) -> tuple[bytes, str]:
        """The bytes of one small object, and the tag that `write_if` takes."""
        bucket, key = split_uri(uri)

        def fetch() -> tuple[bytes, str]:
            response = self._client.get_object(Bucket=bucket, Key=key)
            return response["Body"].read(), str(response["ETag"])

        return _fetch(uri, fetch)

    def files(self, pattern: str) -> list[str]:
        """Return the sorted objects of a URI, prefix or glob (`*` crosses `/`)."""
        return list(self.sizes(pattern))

    def sizes(self, pattern: str) -> dict[str, int]:
        """Their bytes, which the listing gives without another call."""
        bucket, key = split_uri(pattern)
        is_glob = any(sign in key for sign in "*?[")
        prefix = key.split("*")[0].split("?")[0].split("[")[0]
        size_of = {str(item["Key"]): int(item["Size"]) for item in self._objects(bucket, prefix)}
        keys = list(size_of)
        if is_glob:
            keys = [name for name in keys if fnmatch.fnmatchcase(name, key)]
        elif key in keys:
            keys = [key]
        else:
            keys = [name for name in keys if name.startswith(f"{key.rstrip('/')}/" if key else "")]
        return {f"s3://{bucket}/{name}": size_of[name] for name in sorted(keys) if not name.endswith("/")}

    def upload_directory(self, source: Path, uri: str, count: Count | None = None) -> None:
        """Upload every file, the manifest last, for who holds a lock; `count` may raise CancelledError to stop."""
        files = [file for file in sorted(source.rglob("*")) if file.is_file()]
        for file in sorted(files, key=lambda path: path == source / MANIFEST):
            self.upload(file, join(uri, file.relative_to(source).as_posix()), None, count)
        shutil.rmtree(source)

    def download(self, uri: str, path: Path, count: Count | None = None) -> None:
        """Fetch one object into a local file; `count` gets the bytes of each piece and may raise to stop."""
        bucket, key = split_uri(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(uri, lambda: self._client.download_file(bucket, key, str(path), Callback=count))

    def remove_directory(self, uri: str) -> None:
        """Delete the objects below the prefix, the manifest first."""
        bucket, prefix = split_uri(uri)
        with s3_errors(uri):
            self._client.delete_object(Bucket=bucket, Key=_below(prefix) + MANIFEST)
            for item in self._objects(bucket, _below(prefix)):
                self._client.delete_object(Bucket=bucket, Key=item["Key"])

    def remove(self, uri: str) -> None:
        """Delete one object."""
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            self._client.delete_object(Bucket=bucket, Key=key)

    def directory_sizes(self, uri: str) -> dict[str, int]:
        """Bytes of each object below the prefix, by its name there."""
        return {name: int(item["Size"]) for name, item in self._named(uri)}

    def tags(self, uri: str) -> dict[str, str]:
        """Return what tells the bytes of each object below the prefix from others, for `upload`."""
        return {name: str(item["ETag"]) for name, item in self._named(uri)}

    def abort_uploads(self, uri: str) -> None:
        """Drop the parts of unfinished uploads below the prefix: no listing shows them, but they cost."""
        bucket, prefix = split_uri(uri)
        uploads = self._client.get_paginator("list_multipart_uploads")
        with s3_errors(uri):
            for page in uploads.paginate(Bucket=bucket, Prefix=_below(prefix)):
                for upload in page.get("Uploads", ()):
                    self._client.abort_multipart_upload(
                        Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

    def fingerprint(self, uri: str) -> str:
        """ETag and size of the object, which the listing gives without reading it."""
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            head = self._client.head_object(Bucket=bucket, Key=key)
        return f"{head['ETag']}-{head['ContentLength']}"

    def size(self, uri: str) -> int:
        """Bytes of one object."""
        return int(self.version(uri).rpartition("-")[2])

    version = fingerprint

    def listed(self, uri: str) -> dict[str, float]:
        """Return names right below a prefix, and when each was written, in seconds since 1970.

        Of a prefix, whose name ends in `/`, the time is unknown: 0. A request gives a thousand names.
        """
        bucket, prefix = split_uri(uri)
        pages = self._client.get_paginator("list_objects_v2")
        written: dict[str, float] = {}
        with s3_errors(uri):
            for page in pages.paginate(Bucket=bucket, Prefix=_below(prefix), Delimiter="/"):
                written |= {str(item["Prefix"]): 0.0 for item in page.get("CommonPrefixes", ())}
                written |= {
                    str(item["Key"]): item["LastModified"].timestamp() for item in page.get("Contents", ())
                }
        return {name.removeprefix(_below(prefix)): when for name, when in written.items()}

    def directories(self, uri: str) -> list[str]:
        """Prefixes right below with a manifest, oldest first."""
        bucket, prefix = split_uri(uri)
        manifests = [
            item
            for item in self._objects(bucket, _below(prefix))
            if str(item["Key"]).removeprefix(_below(prefix)).partition("/")[2] == MANIFEST
        ]
        manifests.sort(key=lambda item: item["LastModified"])
        return [f"s3://{bucket}/{str(item['Key']).removesuffix(f'/{MANIFEST}')}" for item in manifests]

    def _named(self, uri: str) -> Iterator[tuple[str, dict[str, Any]]]:
        bucket, prefix = split_uri(uri)
        for item in self._objects(bucket, _below(prefix)):
            name = str(item["Key"]).removeprefix(_below(prefix))
            if name and not name.endswith("/"):  # consoles write such objects to show an empty folder
                yield name, item

    def _objects(self, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        with s3_errors(f"s3://{bucket}/{prefix}"):
            for page in pages:
                yield from page.get("Contents", ())


@functools.cache
def s3_client() -> Any:
    """Return the one client of this process; making one takes longer than most calls."""
    # A dead endpoint is given up after some 10 s of retries, a silent one after a minute. AWS_MAX_ATTEMPTS changes that.
    return aws_client("s3", attempts=ATTEMPTS)


# A copy of this process makes its own: two that read from one connection get each other's answers.
os.register_at_fork(after_in_child=s3_client.cache_clear)


def _fetch(uri: str, fetch: Callable[[], T]) -> T:
    for attempt in range(1, DOWNLOADS + 1):
        try:
            with s3_errors(uri):
                return fetch()
        except DamagedError as error:
            log.warning("%s; time %d of %d", error, attempt, DOWNLOADS)
    raise RetryableError(
        f"{uri}: its bytes came damaged or cut off {DOWNLOADS} times; check the network and any proxy, "
        "then run the same command again"
    )


def _below(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not bucket:
        raise DataError(f"{uri}: names no bucket; write s3://bucket/key")
    return bucket, key.rstrip("/")


def _condition(tag: str) -> dict[str, str]:
    return {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}


def _was_changed(error: Exception, uri: str) -> bool:
    """Return whether a write on condition was refused because of the condition."""
    code, status = error_code(error), error_status(error)
    if status == HTTPStatus.NOT_IMPLEMENTED or code == "NotImplemented":
        raise ConditionsError(
            f"{uri}: the storage has no conditional writes (If-None-Match, If-Match)"
        ) from None
    # 404: removed since; 409: written at the same time.
    return status in (404, 409, 412) and code != "NoSuchBucket"


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
