"""Tables of Parquet: rows that are read, and damage that is told."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import ranged, storage
from anadil.artifacts.s3 import S3Ranges
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.core.errors import DataError, RetryableError
from tests.kit.clean_stage import read_file


def test_parquet_is_read_by_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"mətn": ["bir", "iki"], "url": ["https://a.az", None]}), path)

    found, _ = read_file(path, "mətn")

    assert [(raw.text, raw.url) for raw in found] == [("bir", "https://a.az"), ("iki", "")]


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
