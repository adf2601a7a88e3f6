"""What stands before the body of a page: its address, heads that come early, types that come twice."""

from pathlib import Path

import pytest

from anadil.clean.read.warc import HtmlResponse, html_responses
from tests.kit.clean_stage import warc_record
from tests.kit.wrong_lengths import BODY, LIMIT, PLAIN, with_length


@pytest.mark.parametrize("ends", [b"\r\n", b"\n"])
def test_heads_before_that_of_the_response_are_passed_over(tmp_path: Path, ends: bytes) -> None:
    early = ends.join([b"HTTP/1.1 100 Continue", b"", b"HTTP/2 103 Early Hints", b"Link: </a>", b"", b""])
    start = PLAIN[0].index(b"HTTP/1.1 200")
    record = with_length(PLAIN[0][:start] + early + PLAIN[0][start:], lambda true: true + len(early))
    path = tmp_path / "a.warc"
    path.write_bytes(record)

    (found,) = html_responses(path, LIMIT)

    assert isinstance(found, HtmlResponse)
    assert found.body == BODY


@pytest.mark.parametrize(
    ("kind", "charset"),
    [("text/html,text/html", ""), ("Text/HTML; charset=cp1254, text/html; charset=utf-8", "cp1254")],
)
def test_a_content_type_that_is_given_twice_is_its_first(tmp_path: Path, kind: str, charset: str) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(warc_record(BODY, kind=kind))

    (found,) = html_responses(path, LIMIT)

    assert isinstance(found, HtmlResponse)
    assert (found.body, found.charset) == (BODY, charset)


def test_brackets_are_no_part_of_an_address(tmp_path: Path) -> None:
    path = tmp_path / "wget.warc"
    path.write_bytes(warc_record(b"<p>Salam", url="<https://a.az/1>"))

    (found,) = html_responses(path, LIMIT)

    assert isinstance(found, HtmlResponse)
    assert found.url == "https://a.az/1"
