"""Pages and texts in WARC records: heads, types, records without an HTTP head, WET files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import storage
from anadil.clean.read import readers
from anadil.clean.read.crawl_index import crawl_root, index_language
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.clean.read.warc import HtmlResponse, html_responses
from anadil.core.errors import RetryableError
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import bare_record, clean, documents, members, page, read_file, stats, warc_record
from tests.kit.texts import AZERBAIJANI, ENGLISH, TURKISH
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
        (206, "Content-Type: text/html\r\nContent-Range: bytes 0-54/900", True),
        (206, "Content-Type: text/html\r\nContent-Range: bytes 55-109/900", False),
        (200, "Content-Type: text/plain", True),
        (200, 'Content-Type: "text/html"', True),
        (404, "Content-Type: text/html", False),
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


FILE = "crawl-data/CC-MAIN-2026-43/segments/1/warc/CC-MAIN-00000.warc.gz"
Row = dict[str, Any]


def write_crawl(
    root: Path, pages: list[tuple[bytes, str | None]], kind: str = "text/html", **changes: dict[int, Any]
) -> Path:
    """A WARC file and the index of it: bodies and what the index says of their languages."""
    packed = members(
        warc_record(body, url=f"https://a.az/{number}", kind=kind) for number, (body, _) in enumerate(pages)
    )
    warc = root / FILE
    warc.parent.mkdir(parents=True)
    warc.write_bytes(b"".join(packed))
    rows: list[Row] = []
    for number, (member, (_, languages)) in enumerate(zip(packed, pages, strict=True)):
        row = {
            "url": f"https://a.az/{number}", "warc_filename": FILE, "content_languages": languages,
            "warc_record_offset": sum(map(len, packed[:number])), "warc_record_length": len(member),
            "fetch_status": 200, "content_mime_detected": "text/html",
        }  # fmt: skip
        rows.append(row | {key: values[number] for key, values in changes.items() if number in values})
    index = root / "cc-index/table/cc-main/warc/part-0.parquet"
    index.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), index, row_group_size=2)
    return index


def read(uri: str, language: str = "az", **more: Any) -> tuple[list[RawRecord], ReadStats]:
    read_stats = ReadStats()
    return list(
        read_records(uri, "part-0.parquet", "text", read_stats, language=language, **more)
    ), read_stats


PAGES = [
    (page(AZERBAIJANI), "aze"), (page(TURKISH), "tur"), (page("Qarışıq."), "eng,aze"), (page("Nothing."), None),
    (page("Başqa."), "azj"),
]  # fmt: skip


def test_only_pages_of_the_language_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = write_crawl(tmp_path, PAGES)
    fetched: list[int] = []
    part = storage.LocalStore.part

    def counted(self: storage.LocalStore, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        fetched.append(start)
        return part(self, uri, start, num_bytes)

    monkeypatch.setattr(storage.LocalStore, "part", counted)
    found, read_stats = read(str(index))

    assert [raw.url for raw in found] == ["https://a.az/0", "https://a.az/2"]
    assert len(fetched) == 2
    assert [raw.html for raw in found] == [PAGES[0][0], PAGES[2][0]]
    assert found[1].source == f"{FILE}:{fetched[1]}"
    assert (read_stats.records, read_stats.bad) == (2, 0)


def test_more_pages_than_are_fetched_at_a_time_come_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.read.crawl_index.FETCHED_AT_A_TIME", 2)
    index = write_crawl(tmp_path, PAGES * 3)

    found, _ = read(str(index))

    assert [raw.url for raw in found] == [
        f"https://a.az/{5 * turn + at}" for turn in range(3) for at in (0, 2)
    ]


def test_pages_and_their_places_are_those_of_the_whole_file(tmp_path: Path) -> None:
    index = write_crawl(tmp_path, [(body, "jpn") for body, _ in PAGES])

    found, _ = read(str(index), "ja")
    whole = list(read_records(str(tmp_path / FILE), FILE, "text", ReadStats()))

    assert found == whole


def test_a_range_of_row_groups_is_read_alone(tmp_path: Path) -> None:
    index = write_crawl(tmp_path, [(body, "aze") for body, _ in PAGES])

    parts = [read(str(index), start=start, end=end)[0] for start, end in ((0, 1), (1, 2), (2, None))]

    assert [len(part) for part in parts] == [2, 2, 1]
    assert [raw for part in parts for raw in part] == read(str(index))[0]


def test_what_the_index_calls_no_page_or_no_success_is_not_fetched(tmp_path: Path) -> None:
    index = write_crawl(
        tmp_path,
        [(body, "aze") for body, _ in PAGES],
        fetch_status={0: 404},
        content_mime_detected={1: "application/pdf"},
    )

    assert [raw.url[-1] for raw in read(str(index))[0]] == ["2", "3", "4"]


def test_what_its_server_calls_no_page_is_skipped_whatever_the_index_says(tmp_path: Path) -> None:
    found, read_stats = read(str(write_crawl(tmp_path, PAGES, kind="application/pdf")))

    assert (found, read_stats.skipped, read_stats.bad) == ([], 2, 0)


def test_a_record_that_is_not_where_the_index_says_is_refused_with_its_place(tmp_path: Path) -> None:
    index = write_crawl(tmp_path, [(body, "aze") for body, _ in PAGES], warc_record_offset={1: 17, 3: 10**6})

    found, read_stats = read(str(index))

    assert [raw.url[-1] for raw in found] == ["0", "2", "4"]
    assert read_stats.bad == 2
    assert f"{FILE}:1000000: the file ends" in read_stats.places[1]


def test_a_crawl_in_a_bucket_is_read_by_ranges(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_crawl(tmp_path / "crawl", PAGES)
    for path in (index, tmp_path / "crawl" / FILE):
        uri = f"{bucket}/{path.relative_to(tmp_path / 'crawl').as_posix()}"
        storage.store(uri).write(uri, path.read_bytes())
    monkeypatch.setattr(storage, "local_copy", None)

    found, _ = read(f"{bucket}/cc-index/table/cc-main/warc/part-0.parquet")
    assert [raw.url[-1] for raw in found] == ["0", "2"]


def test_records_that_do_not_come_end_the_run_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_crawl(tmp_path, PAGES)
    monkeypatch.setattr(storage.LocalStore, "part", lambda *_: (b"", 10**9))

    with pytest.raises(RetryableError, match="did not come whole; check the network"):
        read(str(index))


@pytest.mark.parametrize(("busy", "is_read"), [(2, True), (3, False)])
def test_a_storage_that_is_busy_is_asked_three_times(
    busy: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_crawl(tmp_path, PAGES)
    asked: Counter[int] = Counter()
    answered = storage.LocalStore.part

    def part(store: storage.LocalStore, uri: str, start: int, num_bytes: int) -> tuple[bytes, int]:
        asked[start] += 1
        if asked[start] <= busy:
            raise RetryableError("slow down")
        return answered(store, uri, start, num_bytes)

    monkeypatch.setattr(storage.LocalStore, "part", part)

    if is_read:
        assert [raw.url[-1] for raw in read(str(index))[0]] == ["0", "2"]
    else:
        with pytest.raises(RetryableError, match="slow down"):
            read(str(index))
    assert set(asked.values()) == {3}


@pytest.mark.parametrize(
    ("code", "expected"),
    [("az", "aze"), ("ja", "jpn"), ("kk", "kaz"), ("sah", "sah"), ("az-Latn", "aze"), ("azj_Latn", "azj")],
)
def test_languages_are_called_as_the_index_calls_them(code: str, expected: str) -> None:
    assert index_language(code) == expected


def test_files_lie_beside_their_index_or_in_common_crawl() -> None:
    assert crawl_root("s3://mirror/cc/cc-index/table/a.parquet") == "s3://mirror/cc"
    assert crawl_root("index/az.parquet") == "s3://commoncrawl"
