"""Pages and texts in WARC records: heads, types, records without an HTTP head, WET files."""

from pathlib import Path

import pytest

from anadil.clean.read import readers
from anadil.clean.read.warc import HtmlResponse, html_responses
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import bare_record, clean, documents, members, page, read_file, stats, warc_record
from tests.kit.texts import ENGLISH
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


SMALL_PAGE = b"<!DOCTYPE html>\n<html><body><p>Salam</p></body></html>"
XHTML = b'<?xml version="1.0"?>\n<!-- x -->\n<html xmlns="http://www.w3.org/1999/xhtml"><body>a</body></html>'


def is_read(folder: Path, kind: str, own_type: str, block: bytes) -> bool:
    """Whether a page comes of a record; its block is the page, or for a response an HTTP message."""
    named = f"Content-Type: {own_type}\r\n" if own_type else ""
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a.az/\r\n{named}Content-Length: {len(block)}\r\n\r\n"
    path = folder / "a.warc"
    path.write_bytes(head.encode() + block + b"\r\n\r\n")
    [item] = html_responses(path, 1_000_000)
    return isinstance(item, HtmlResponse) and not item.is_text and item.body in (SMALL_PAGE, XHTML)


@pytest.mark.parametrize("kind", ["resource", "conversion"])
@pytest.mark.parametrize("page", [SMALL_PAGE, XHTML])
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
    message = f"HTTP/1.1 {status} OK\r\n{head}\r\n\r\n".encode() + SMALL_PAGE

    assert is_read(tmp_path, "response", "application/http; msgtype=response", message) is read


@pytest.mark.parametrize("kind", ["resource", "conversion"])
def test_pages_that_stand_in_a_warc_without_a_head_are_read_and_the_rest_is_counted(
    tmp_path: Path, kind: str
) -> None:
    html = "<p>şirin gün</p>".encode("iso-8859-9")
    records = [
        warc_record(page("a")),
        bare_record(html, kind, "text/html; charset=iso-8859-9", "file:///ev/1.html"),
        bare_record(html, kind, "APPLICATION/XHTML+XML"),
        bare_record(b"GIF89a", kind, "image/gif"),
        bare_record(b"", "revisit", "application/http; msgtype=response"),
        warc_record(page("b"), status="404 Not Found"),
    ]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(members(records)))

    found, read_stats = read_file(tmp_path / "a.warc.gz")

    assert [raw.html for raw in found] == [page("a"), html, html]
    assert [(raw.url, raw.charset) for raw in found[1:]] == [
        ("file:///ev/1.html", "iso-8859-9"),
        ("https://a.az/1", ""),
    ]
    assert read_stats.not_read == {kind: 1, "revisit": 1}
    assert (read_stats.skipped, read_stats.bad) == (1, 0)


def test_a_page_over_the_limit_is_told_from_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 100)
    records = [bare_record(b"x" * 200, "resource", kind) for kind in ("text/html", "video/mp4")]
    (tmp_path / "a.warc").write_bytes(b"".join(records))

    found, read_stats = read_file(tmp_path / "a.warc")

    assert [raw.too_large for raw in found] == [True]
    assert read_stats.not_read == {"resource": 1}


TYPE = "text/plain"
TURKISH_CODE_PAGE = "şirin gün, köhne yol".encode("iso-8859-9")


def wet_record(text: str | bytes, number: int, said: int | None = None) -> bytes:
    """A record of a WET file; `said` instead of its length."""
    block = text.encode() if isinstance(text, str) else text
    record = bare_record(block, "conversion", TYPE, f"https://a.az/{number}")
    record = record.replace(b"Content-Type", b"WARC-Identified-Content-Language: aze\r\nContent-Type", 1)
    return record if said is None else record.replace(b"Length: %d" % len(block), b"Length: %d" % said)


@pytest.mark.parametrize("name", ["a.warc.wet.gz", "A.WARC.WET.GZ", "a.warc.gz", "a.warc.wet", "a.warc"])
def test_texts_of_a_wet_file_are_read_and_what_is_none_is_counted(tmp_path: Path, name: str) -> None:
    records = [
        bare_record(b"Software-Info: ia-web-commons", "warcinfo", "application/warc-fields"),
        wet_record("Birinci mətn.\nİkinci sətir.", 1),
        wet_record("", 2),
        wet_record(TURKISH_CODE_PAGE, 3),
        wet_record("Yalan uzunluq", 4, said=9_000),
        bare_record(b"{}", "metadata", "application/json"),
        bare_record(b"{}", "conversion", "application/json"),
        wet_record("Sonuncu mətn.", 5),
    ]
    path = tmp_path / name
    path.write_bytes(b"".join(members(records) if name.lower().endswith(".gz") else records))

    found, read_stats = read_file(path)

    assert [(raw.url, raw.text, raw.html) for raw in found] == [
        ("https://a.az/1", "Birinci mətn.\nİkinci sətir.", None),
        ("https://a.az/2", "", None),
        ("https://a.az/3", "şirin gün, köhne yol", None),
        ("https://a.az/5", "Sonuncu mətn.", None),
    ]
    assert read_stats.not_read == {"warcinfo": 1, "metadata": 1, "conversion": 1}
    assert (read_stats.bad, read_stats.recoded) == (1, 1)


def test_a_text_over_the_limit_is_bad_and_one_with_a_charset_is_read_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 100)
    named = bare_record("yağış".encode("cp1254"), "conversion", "Text/Plain; charset=cp1254")
    (tmp_path / "a.warc.wet").write_bytes(wet_record("x" * 200, 1) + named)

    found, read_stats = read_file(tmp_path / "a.warc.wet")

    assert [raw.text for raw in found] == ["yağış"]
    assert "text is larger than 100 B" in read_stats.places[0]


def test_a_text_passes_all_that_other_text_passes(tmp_path: Path) -> None:
    own = texts(4)
    records = [wet_record(text, number) for number, text in enumerate([*own, own[0], ENGLISH * 3, ""])]
    (tmp_path / "CC-MAIN.warc.wet.gz").write_bytes(b"".join(members([*records, warc_record(page("x"))])))

    corpus = clean(tmp_path, tmp_path / "CC-MAIN.warc.wet.gz")

    assert {document.url for document in documents(corpus)} == {f"https://a.az/{n}" for n in range(4)}
    dropped = stats(corpus)["dropped"]
    assert sum(dropped.values()) == 4
    assert {"language", "duplicate"} <= set(dropped)
