"""Records and answers that hold a page, whatever their type is called."""

from pathlib import Path

import pytest

from anadil.clean.read.warc import HtmlResponse, html_responses

PAGE = b"<!DOCTYPE html>\n<html><body><p>Salam</p></body></html>"
XHTML = b'<?xml version="1.0"?>\n<!-- x -->\n<html xmlns="http://www.w3.org/1999/xhtml"><body>a</body></html>'


def is_read(folder: Path, kind: str, own_type: str, block: bytes) -> bool:
    """Whether a page comes of a record; its block is the page, or for a response an HTTP message."""
    named = f"Content-Type: {own_type}\r\n" if own_type else ""
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a.az/\r\n{named}Content-Length: {len(block)}\r\n\r\n"
    path = folder / "a.warc"
    path.write_bytes(head.encode() + block + b"\r\n\r\n")
    [item] = html_responses(path, 1_000_000)
    return isinstance(item, HtmlResponse) and item.body in (PAGE, XHTML)


@pytest.mark.parametrize("kind", ["resource", "conversion"])
@pytest.mark.parametrize("page", [PAGE, XHTML])
@pytest.mark.parametrize(
    "own_type", ["", "application/octet-stream", '"text/html"', "'text/html'; charset=utf-8", "text/plain"]
)
def test_a_page_by_itself_is_read_without_a_type_or_with_an_unsure_one(
    tmp_path: Path, kind: str, page: bytes, own_type: str
) -> None:
    assert is_read(tmp_path, kind, own_type, page)


@pytest.mark.parametrize("own_type", ["", "application/octet-stream", "text/plain", "image/png"])
@pytest.mark.parametrize("block", [b"Salam, <html> sonra", b"\x89PNG\r\n", b"%PDF-1.7 <html>", b""])
def test_what_is_no_page_is_not_read_for_its_type(tmp_path: Path, own_type: str, block: bytes) -> None:
    assert not is_read(tmp_path, "resource", own_type, block)


@pytest.mark.parametrize(
    ("status", "head", "read"),
    [
        (203, "Content-Type: text/html", True),
        (206, "Content-Type: text/html\r\nContent-Range: bytes 0-54/900", True),
        (206, "Content-Type: text/html\r\nContent-Range: bytes 55-109/900", False),
        (200, "Content-Type: text/plain", True),
        (200, "Server: x", True),
        (200, 'Content-Type: "text/html"', True),
        (404, "Content-Type: text/html", False),
        (301, "Content-Type: text/html", False),
        (200, "Content-Type: application/json", False),
    ],
)
def test_answers_with_a_page_from_its_beginning_are_read(
    tmp_path: Path, status: int, head: str, read: bool
) -> None:
    message = f"HTTP/1.1 {status} OK\r\n{head}\r\n\r\n".encode() + PAGE

    assert is_read(tmp_path, "response", "application/http; msgtype=response", message) is read
