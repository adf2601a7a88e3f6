"""Text and address of a record under the keys of many data sets."""

import errno
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import ranged, storage
from anadil.artifacts.s3 import S3Ranges
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.clean.read.record_fields import address_columns, address_of, text_of
from anadil.core.errors import DataError, RetryableError
from tests.kit.clean_stage import read_file

PAGE = "https://ev.example/a?b=c"


@pytest.mark.parametrize(
    "row",
    [
        {"url": PAGE, "u": "https://other.example"},
        {"u": PAGE},
        {"URL": PAGE},
        {"source_url": PAGE},
        {"pageUrl": PAGE},
        {"metadata": {"url": PAGE}},
        {"metadata": {"warc_headers": {"warc-target-uri": PAGE}}},
        {"WARC-Target-URI": PAGE},
        {"image_url": "https://cdn.example/a.png", "license": "https://cc.example/by", "link": PAGE},
        {"source": PAGE},
        {"id": PAGE},
        {"url": None, "meta": {"url": PAGE}},
        {"url": b"https://ev.example/a?b=c"},
    ],
)
def test_the_address_of_a_record_is_found_under_other_keys_too(row: dict[str, Any]) -> None:
    assert address_of(row) == PAGE


@pytest.mark.parametrize(
    "row",
    [
        {"source": "news", "id": "a.b"},
        {"image_url": "https://cdn.example/a.png"},
        {"links": ["https://a.example"]},
        {"link": "see below", "license_url": "https://cc.example"},
        {"a": {"b": {"c": {"d": {"url": PAGE}}}}},
    ],
)
def test_what_is_not_the_address_of_the_page_is_not_taken_for_it(row: dict[str, Any]) -> None:
    assert address_of(row) == ""


def test_a_host_alone_is_an_address_where_no_better_one_is_given() -> None:
    assert address_of({"domain": "ev.example"}) == "ev.example"
    assert address_of({"domain": "ev.example", "page_url": PAGE}) == PAGE


def test_columns_of_addresses_are_the_surest_first_and_no_lists() -> None:
    paths = ["id", "meta.url", "text", "links.list.element.url", "source_url", "domain", "image_url"]

    assert address_columns(paths) == ["meta.url", "source_url", "domain"]
    assert address_columns([*paths, "url"]) == ["url"]


def test_a_path_leads_into_tables_and_a_key_with_a_dot_goes_before() -> None:
    assert text_of({"document": {"text": "bir"}}, "document.text") == "bir"
    assert text_of({"document.text": "iki", "document": {"text": "bir"}}, "document.text") == "iki"
    assert text_of({"a.b": {"c": "üç"}}, "a.b.c") == "üç"
    assert text_of({"document": None}, "document.text") is None
    with pytest.raises(ValueError, match=r"no key 'document.text' \(clean.text_field\) among 'document'"):
        text_of({"document": {"body": "bir"}}, "document.text")


def test_a_parquet_column_of_bytes_that_are_utf_8_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array(["üç".encode(), "dörd".encode("utf-16"), None], pa.large_binary())
    pq.write_table(pa.table({"text": texts}), path)

    found, read_stats = read_file(path)

    assert [raw.text for raw in found] == ["üç", ""]
    assert (read_stats.null_texts, read_stats.bad) == (1, 1)
    assert read_stats.places[0].startswith("a.parquet:2: not UTF-8: ")


def test_text_and_address_within_other_columns_are_read_by_their_paths(tmp_path: Path) -> None:
    rows = [
        {"document": {"text": "bir", "html": "x" * 9}, "meta": {"page_url": "https://a.az/1", "image_url": "https://b.az"}},
        {"document": None, "meta": None},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")

    found, read_stats = read_file(tmp_path / "a.parquet", "document.text")

    assert [(raw.text, raw.url) for raw in found] == [("bir", "https://a.az/1"), ("", "")]
    assert (read_stats.null_texts, read_stats.addresses) == (1, 1)


def test_a_parquet_row_that_is_not_utf_8_is_bad_and_its_neighbours_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    # Arrow does not look at what C++ or Spark says is text.
    texts = pa.array([b"bir", b"\xfe\xff", b"iki"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), path)

    found, read_stats = read_file(path)

    assert [(raw.text, raw.source) for raw in found] == [("bir", "a.parquet:1"), ("iki", "a.parquet:3")]
    assert read_stats.places == [
        "a.parquet:2: not UTF-8: 'utf-8' codec can't decode byte 0xfe in position 0: invalid start byte"
    ]


def test_parquet_without_the_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["bir"]}), path)

    with pytest.raises(DataError, match=r"a\.parquet: no column 'text' \(clean\.text_field\) among body"):
        read_file(path)


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        ("text", r"rename them, and name the one to read in clean\.text_field"),
        ("url", "rename or leave out all but one"),
    ],
)
def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path, column: str, remedy: str) -> None:
    path = tmp_path / "a.parquet"
    names = ["text", "url", column, "other", "other"]
    pq.write_table(pa.Table.from_arrays([pa.array(["bir"])] * 5, names=names), path)

    with pytest.raises(DataError, match=rf"a\.parquet: 2 columns are named '{column}', .*; {remedy}"):
        read_file(path)


def test_a_column_of_bytes_beside_the_text_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    urls = pa.array(["https://a.az/\u0259".encode(), b"\xff"], pa.binary())
    pq.write_table(pa.table({"text": ["bir", "iki"], "url": urls}), path)

    found, read_stats = read_file(path)

    assert [(raw.text, raw.url) for raw in found] == [("bir", "https://a.az/\u0259"), ("iki", "")]
    assert read_stats.bad == 0


def test_bytes_that_are_no_parquet_are_a_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")

    assert read_file(path)[1].bad == 1


def test_a_disk_that_fails_under_a_table_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["bir"]}), path)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", Mock(side_effect=OSError(errno.EIO, "broken")))

    with pytest.raises(OSError, match="broken"):
        read_file(path)


def test_a_table_in_a_bucket_whose_bytes_do_not_come_is_not_called_damaged(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"text": ["bir"] * 3_000}), tmp_path / "a.parquet")
    uri = f"{bucket}/a.parquet"
    storage.store(uri).write(uri, (tmp_path / "a.parquet").read_bytes())
    monkeypatch.setattr(ranged, "PAUSE_S", 0.0)
    monkeypatch.setattr(S3Ranges, "fetch", lambda *_: b"")

    with pytest.raises(RetryableError, match="did not come whole"):
        list(read_records(uri, "a.parquet", "text", ReadStats()))
