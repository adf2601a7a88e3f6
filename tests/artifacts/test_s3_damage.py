"""Wrong bytes from S3: fetched again, then an error that says to try again, and never one of settings."""

import hashlib
import random
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zlib import crc32

import pytest

from anadil.artifacts import artifact, s3, storage
from anadil.artifacts.prefetch import fetch_from, fill
from anadil.core.errors import IntegrityError, RetryableError
from anadil.runtime import termination

BODY = b"the bytes of one object, as they were written " * 100


class Fault:
    """What the server does to the bodies that it sends, and how often still."""

    def __init__(self) -> None:
        self.kind, self.left, self.sent = "", 0, 0
        self.says_checksum = True

    def applied(self) -> tuple[bytes, int]:
        """A body, and the length that is said of it."""
        self.sent += 1
        if self.left <= 0:
            return BODY, len(BODY)
        self.left -= 1
        if self.kind == "cut":
            return BODY[: len(BODY) // 2], len(BODY)
        at = random.Random(self.sent).randrange(len(BODY))
        if self.kind == "same":
            at = 7
        return BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :], len(BODY)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fault]:
    """A server that speaks enough of the protocol for one object, and damages what it sends."""
    fault = Fault()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(BODY, len(BODY), b"")

        def do_GET(self) -> None:
            body, length = fault.applied()
            self._answer(body, length, body)

        def _answer(self, _: bytes, length: int, sent: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.send_header("ETag", '"0123"')
            self.send_header("Last-Modified", "Sun, 22 Nov 2026 08:00:00 GMT")
            if fault.says_checksum:
                import base64

                sum_ = base64.b64encode(crc32(BODY).to_bytes(4, "big")).decode()
                self.send_header("x-amz-checksum-crc32", sum_)
            self.end_headers()
            self.wfile.write(sent)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3.s3_client.cache_clear()
    yield fault
    server.shutdown()
    server.server_close()
    s3.s3_client.cache_clear()


URI = "s3://bucket/object"


def read(_: Path) -> bytes:
    return storage.store(URI).read(URI)


def read_tagged(_: Path) -> bytes:
    return s3.S3().read_tagged(URI)[0]


def download(folder: Path) -> bytes:
    storage.store(URI).download(URI, folder / "object")
    return (folder / "object").read_bytes()


READS = [read, read_tagged, download]


@pytest.mark.parametrize("kind", ["flip", "cut"])
@pytest.mark.parametrize("way", READS)
def test_damaged_bytes_are_fetched_again(fault: Fault, tmp_path: Path, kind: str, way: object) -> None:
    fault.kind, fault.left = kind, 2

    assert callable(way)
    assert way(tmp_path) == BODY

    assert fault.sent == 3


@pytest.mark.parametrize("kind", ["flip", "cut"])
@pytest.mark.parametrize("way", READS)
def test_bytes_that_stay_damaged_are_to_be_tried_again(
    fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, way: object
) -> None:
    fault.kind, fault.left = kind, 1000
    assert callable(way)

    code = termination.exit_code_of(lambda: len(way(tmp_path)))

    assert code == 138, caplog.text
    assert "run the same command again" in caplog.text
    assert "AWS configuration" not in caplog.text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("flip", RetryableError, "object: came with other bytes each time"),
        ("same", IntegrityError, "object: differs from its manifest"),
    ],
)
def test_without_checksums_other_bytes_each_time_are_the_networks_fault_and_the_same_ones_are_stored(
    fault: Fault, tmp_path: Path, kind: str, error: type[Exception], message: str
) -> None:
    fault.says_checksum, fault.kind, fault.left = False, kind, 1000
    files: dict[str, dict[str, str | int]] = {
        "object": {"bytes": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest()}
    }

    with pytest.raises(error, match=message):
        fill(tmp_path / "copy", files, fetch_from("s3://bucket"), "s3://bucket")


def test_an_upload_that_did_not_arrive_whole_can_be_tried_again(bucket: str, tmp_path: Path) -> None:
    from botocore.awsrequest import AWSResponse

    def bad_digest(params: dict[str, object], **_: object) -> object:
        error = {"Code": "BadDigest", "Message": "The checksum did not match what we received."}
        response = AWSResponse(str(params["url"]), 400, {}, None)
        return response, {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}

    s3.s3_client().meta.events.register("before-call.s3.PutObject", bad_digest)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a.txt").write_text("text")
    artifact.seal(tmp_path / "source", kind="corpus", origin={})

    with pytest.raises(RetryableError, match="BadDigest; what was sent did not arrive whole"):
        s3.S3().upload_directory(tmp_path / "source", f"{bucket}/out")
