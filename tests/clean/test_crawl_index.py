"""The columnar index of a crawl as input."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import storage
from anadil.clean.read.crawl_index import crawl_root, index_language
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.core.errors import RetryableError
from tests.kit.clean_stage import members, page, warc_record
from tests.kit.texts import AZERBAIJANI, TURKISH

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

    with pytest.raises(RetryableError, match="did not come whole 3 times"):
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
