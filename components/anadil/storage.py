"""Files and directories, local or `s3://`: the only module that tells the two apart.

A URI is a local path or `s3://bucket/key`. Reads and writes of whole directories are what
artifacts need; `Local` and `S3` answer the same calls.
"""

import glob
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from anadil.errors import AnadilError, DataError, PreflightError, RetryableError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
"""Written last in a directory, so that its presence says that the directory is whole."""


BUILT_IN = "builtin:"
"""Prefix of the data that comes with the program, such as `builtin:az/prose.jsonl`."""


class Store(Protocol):
    """One kind of storage."""

    def exists(self, uri: str) -> bool:
        """Whether a file is there."""
        ...

    def read(self, uri: str) -> bytes:
        """The bytes of one small file."""
        ...

    def files(self, pattern: str) -> list[str]:
        """Sorted URIs of the files that a path, directory or glob names."""
        ...

    def put_directory(self, source: Path, uri: str) -> None:
        """Make `uri` hold what `source` holds, its manifest last; `source` may be moved away."""
        ...

    def get_directory(self, uri: str) -> Path:
        """A local directory with the files below `uri`; the same one where it is local."""
        ...

    def remove_directory(self, uri: str) -> None:
        """Remove `uri` and all below it, its manifest first."""
        ...

    def fingerprint(self, uri: str) -> str:
        """A text that changes when the bytes of the file do."""
        ...

    def directories(self, uri: str) -> list[str]:
        """Directories right below `uri`, oldest manifest first, without those that have none."""
        ...


def store(uri: str) -> Store:
    """The storage that a URI belongs to.

    Raises:
        PreflightError: Its scheme is not one that we speak, or boto3 is not installed.
    """
    scheme, separator, _ = uri.partition("://")
    if uri.startswith(BUILT_IN):
        return BuiltIn()
    if not separator:
        return Local()
    if scheme == "s3":
        return S3()
    raise PreflightError(f"{uri}: storage {scheme}:// is not supported; use a local path or s3://")


def join(root: str, *parts: str) -> str:
    """A URI below another."""
    return "/".join([root.rstrip("/") or "/", *parts])


@contextmanager
def local_copy(uri: str) -> Iterator[Path]:
    """A local path with the bytes of one file; a download lives as long as the block."""
    if "://" not in uri:
        yield built_in(uri) if uri.startswith(BUILT_IN) else Path(uri)
        return
    s3 = store(uri)
    assert isinstance(s3, S3)
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder) / Path(uri).name
        s3.download(uri, path)
        yield path


def expand(patterns: tuple[str, ...], key: str) -> list[str]:
    """The files that inputs name, in order, each once.

    Args:
        patterns: Paths, globs, directories, `s3://` URIs.
        key: The recipe key that holds them, for messages.

    Raises:
        DataError: A pattern names no file.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        uris = store(pattern).files(pattern)
        if not uris:
            raise DataError(f"{key}: no file matches {pattern!r}; correct the path or remove it from {key}")
        found.update(dict.fromkeys(uris))
    return list(found)


class Local:
    """Files of this machine."""

    def exists(self, uri: str) -> bool:
        """Whether a file is there."""
        return Path(uri).is_file()

    def read(self, uri: str) -> bytes:
        """The bytes of one small file."""
        try:
            return Path(uri).read_bytes()
        except FileNotFoundError:
            raise DataError(f"{uri}: no such file") from None

    def files(self, pattern: str) -> list[str]:
        """Sorted files of a path, directory or glob (`**` goes down)."""
        path = Path(pattern).expanduser()
        if path.is_dir():
            return sorted(str(file) for file in path.rglob("*") if file.is_file())
        if path.is_file():
            return [str(path)]
        # Path.glob takes no absolute pattern.
        found = glob.glob(str(path), recursive=True)  # noqa: PTH207
        return sorted(name for name in found if Path(name).is_file())

    def put_directory(self, source: Path, uri: str) -> None:
        """Rename `source` to `uri`, in one step, after its bytes have reached the disk."""
        target = Path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in [*source.rglob("*"), source]:
            _flush(file)
        if target.exists():
            shutil.rmtree(target)
        source.rename(target)
        _flush(target.parent)

    def get_directory(self, uri: str) -> Path:
        """The directory itself."""
        return Path(uri)

    def remove_directory(self, uri: str) -> None:
        """Remove the directory, its manifest first, so that a half-removed one is no artifact."""
        (Path(uri) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(uri, ignore_errors=True)

    def fingerprint(self, uri: str) -> str:
        """SHA-256 of the file."""
        with Path(uri).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def directories(self, uri: str) -> list[str]:
        """Directories right below with a manifest, oldest first."""
        manifests = Path(uri).glob(f"*/{MANIFEST}")
        return [str(path.parent) for path in sorted(manifests, key=lambda p: p.stat().st_mtime_ns)]


class BuiltIn(Local):
    """Data that comes with the program: the same names in a checkout, a wheel and an image."""

    def exists(self, uri: str) -> bool:
        """Whether a file is there."""
        return super().exists(str(built_in(uri)))

    def read(self, uri: str) -> bytes:
        """The bytes of one small file."""
        return super().read(str(built_in(uri)))

    def files(self, pattern: str) -> list[str]:
        """Sorted names, with the prefix."""
        root = built_in(BUILT_IN)
        found = super().files(str(built_in(pattern)))
        return [f"{BUILT_IN}{Path(path).relative_to(root).as_posix()}" for path in found]

    def fingerprint(self, uri: str) -> str:
        """SHA-256 of the file."""
        return super().fingerprint(str(built_in(uri)))


def built_in(uri: str) -> Path:
    """Where a `builtin:` file lies on this machine."""
    return Path(__file__).parent / "builtin" / uri.removeprefix(BUILT_IN)


class S3:
    """Objects of an S3 bucket; credentials come from the environment, as boto3 finds them."""

    def __init__(self) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise PreflightError("s3:// needs boto3: pip install 'anadil[s3]'") from None
        retries = {"mode": "adaptive", "max_attempts": 10}
        self._client: Any = boto3.client(
            "s3", config=Config(retries=retries, connect_timeout=10, read_timeout=60)
        )

    def exists(self, uri: str) -> bool:
        """Whether an object is there."""
        bucket, key = _split(uri)
        with _explained(uri):
            found = self._client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
        return any(item["Key"] == key for item in found.get("Contents", ()))

    def read(self, uri: str) -> bytes:
        """The bytes of one small object."""
        bucket, key = _split(uri)
        with _explained(uri):
            body: bytes = self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body

    def files(self, pattern: str) -> list[str]:
        """Sorted objects of a URI, prefix or glob (`*` crosses `/`)."""
        import fnmatch

        bucket, key = _split(pattern)
        is_glob = any(sign in key for sign in "*?[")
        prefix = key.split("*")[0].split("?")[0].split("[")[0]
        keys = [str(item["Key"]) for item in self._objects(bucket, prefix)]
        if is_glob:
            keys = [name for name in keys if fnmatch.fnmatchcase(name, key)]
        elif key in keys:
            keys = [key]
        else:
            keys = [name for name in keys if name.startswith(f"{key.rstrip('/')}/" if key else "")]
        return [f"s3://{bucket}/{name}" for name in sorted(keys) if not name.endswith("/")]

    def put_directory(self, source: Path, uri: str) -> None:
        """Upload every file, the manifest last."""
        bucket, prefix = _split(uri)
        files = [file for file in sorted(source.rglob("*")) if file.is_file()]
        for file in sorted(files, key=lambda path: path == source / MANIFEST):
            key = f"{prefix}/{file.relative_to(source).as_posix()}"
            with _explained(f"s3://{bucket}/{key}"):
                self._client.upload_file(str(file), bucket, key)
        shutil.rmtree(source)

    def get_directory(self, uri: str) -> Path:
        """Download into the cache (`ANADIL_CACHE`, else the temporary directory)."""
        bucket, prefix = _split(uri)
        cache = Path(os.environ.get("ANADIL_CACHE", Path(tempfile.gettempdir()) / "anadil-cache"))
        # Keyed by the manifest, so that a directory that was written anew is fetched anew.
        identity = uri.encode() + self.read(join(uri, MANIFEST))
        target = cache / hashlib.sha256(identity).hexdigest()[:16]
        for item in self._objects(bucket, f"{prefix}/"):
            name = str(item["Key"]).removeprefix(f"{prefix}/")
            path = target / name
            if not path.resolve().is_relative_to(target.resolve()):
                raise DataError(f"{uri}: object {name!r} points out of its directory; remove it")
            if not path.is_file() or path.stat().st_size != item["Size"]:
                self.download(f"s3://{bucket}/{item['Key']}", path)
        return target

    def download(self, uri: str, path: Path) -> None:
        """Fetch one object into a local file."""
        bucket, key = _split(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _explained(uri):
            self._client.download_file(bucket, key, str(path))

    def remove_directory(self, uri: str) -> None:
        """Delete the objects below the prefix, the manifest first."""
        bucket, prefix = _split(uri)
        with _explained(uri):
            self._client.delete_object(Bucket=bucket, Key=f"{prefix}/{MANIFEST}")
            for item in self._objects(bucket, f"{prefix}/"):
                self._client.delete_object(Bucket=bucket, Key=item["Key"])

    def fingerprint(self, uri: str) -> str:
        """ETag and size of the object, which the listing gives without reading it."""
        bucket, key = _split(uri)
        with _explained(uri):
            head = self._client.head_object(Bucket=bucket, Key=key)
        return f"{head['ETag']}-{head['ContentLength']}"

    def directories(self, uri: str) -> list[str]:
        """Prefixes right below with a manifest, oldest first."""
        bucket, prefix = _split(uri)
        found = [
            item
            for item in self._objects(bucket, f"{prefix}/")
            if str(item["Key"]).removeprefix(f"{prefix}/").partition("/")[2] == MANIFEST
        ]
        found.sort(key=lambda item: item["LastModified"])
        return [f"s3://{bucket}/{str(item['Key']).removesuffix(f'/{MANIFEST}')}" for item in found]

    def _objects(self, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        with _explained(f"s3://{bucket}/{prefix}"):
            for page in pages:
                yield from page.get("Contents", ())


def _split(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not bucket:
        raise DataError(f"{uri}: names no bucket; write s3://bucket/key")
    return bucket, key.rstrip("/")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Turn boto3's errors into ours: what can be retried, what the user must grant or correct."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
    )

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError):
        raise PreflightError(
            f"{uri}: no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or run with a role (IRSA, Pod Identity)"
        ) from None
    except NoRegionError:
        raise PreflightError(f"{uri}: no AWS region; set AWS_REGION") from None
    except (ClientError, Boto3Error) as error:
        raise _client_error(uri, error) from None
    except BotoCoreError as error:
        raise RetryableError(f"{uri}: {error}; storage did not answer, run the same command again") from None


def _client_error(uri: str, error: Exception) -> AnadilError:
    response = getattr(error, "response", {})
    code = str(response.get("Error", {}).get("Code", "")) or str(error)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if "NoSuchBucket" in code or "NoSuchKey" in code or status == 404 or "(404)" in code:
        return DataError(f"{uri}: does not exist; check bucket and key")
    if status == 403 or "AccessDenied" in code or "(403)" in code:
        return PreflightError(f"{uri}: access denied ({code}); grant s3:GetObject, PutObject and ListBucket")
    if status >= 500 or not status:
        return RetryableError(f"{uri}: {code}; storage failed for now, run the same command again")
    return PreflightError(f"{uri}: S3 refused: {code}")
