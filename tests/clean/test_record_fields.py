"""Text and address of a record under the keys of many data sets."""

import csv
import errno
import gzip
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.artifacts import ranged, separated_file, storage
from anadil.artifacts.s3 import S3Ranges
from anadil.artifacts.separated_file import SeparatedFile
from anadil.clean.read.input_kinds import suffix_of
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.clean.read.record_fields import address_columns, address_of, licence_of, text_of
from anadil.clean.shards.shards import plan_shards
from anadil.core.errors import DataError, RetryableError
from anadil.core.format import MIB
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, content, documents, read_file, stats, write_jsonl
from tests.kit.workbooks import write_workbook

PAGE = "https://ev.example/a?b=c"


@pytest.mark.parametrize(
    "row",
    [
        {"url": PAGE, "u": "https://other.example"},
        {"u": PAGE},
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
        {"link": "see below", "license_url": "https://cc.example"},
        {"a": {"b": {"c": {"d": {"url": PAGE}}}}},
    ],
)
def test_what_is_not_the_address_of_the_page_is_not_taken_for_it(row: dict[str, Any]) -> None:
    assert address_of(row) == ""


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"license_url": "https://cc.example/by", "license": " CC  BY "}, "CC BY"),
        ({"License": None, "metadata": {"license": "CC BY"}}, "CC BY"),
        ({"licenses": ["MIT", "MIT", "Apache-2.0"]}, "MIT, Apache-2.0"),
        ({"meta": {"licenses": [{"spdx_id": "MIT", "url": "https://mit.example"}]}}, "MIT"),
        ({"max_stars_repo_licenses": ["MIT"]}, "MIT"),
        ({"license": {"url": "https://cc.example/by"}}, "https://cc.example/by"),
        ({"metadata": '{"licence": "MIT", "x": [1]}', "rights": "all"}, "MIT"),
        ({"dc:rights": "CC0", "human_rights": "no"}, "CC0"),
        ({"info": '{"rightsList": [{"rightsURI": "https://cc.example/by"}]}'}, "https://cc.example/by"),
        ({"metadata": '{"licence": '}, ""),
        ({"has_license": True, "license_confidence": "high"}, ""),
    ],
)
def test_the_licence_of_a_record_is_found_under_other_keys_too(
    row: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert licence_of(row) == expected
    assert address_of(row) == ""
    table = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"text": "Salam", **row}]), table)
    assert read_file(table)[0][0].licence == expected


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


TEXTS = ["Salam, dünya!", 'O dedi: "Gəl".', "Birinci sətir\nikinci\r\nüçüncü", "  boş  ", "\t"]


def read(
    folder: Path, data: str | bytes, name: str = "a.csv", field: str = "text"
) -> tuple[list[RawRecord], ReadStats]:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_file(path, field)


def table(rows: list[list[str]], delimiter: str = ",", line_end: str = "\r\n") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=line_end).writerows(rows)
    return out.getvalue()


ROWS = [["id", "text"], *([str(number), text] for number, text in enumerate(TEXTS))]


@pytest.mark.parametrize("line_end", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t"), ("a.tsv", ",")]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_rows_are_read_whatever_writes_them(
    tmp_path: Path, name: str, delimiter: str, line_end: str, encoding: str
) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    data = (mark + table(ROWS, delimiter, line_end)).encode(encoding)

    records, stats = read(tmp_path, data, name)

    assert [record.text for record in records] == TEXTS
    assert stats.bad == 0
    assert stats.recoded == encoding.startswith("utf-16")
    assert stats.columns_not_read == {}  # an id may be an address


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_tables_are_read(tmp_path: Path, pack: object) -> None:
    data = pack(table(ROWS).encode())  # type: ignore[operator]  # each takes bytes

    records, _ = read(tmp_path, data, "a.CSV.gz" if pack is gzip.compress else "a.tsv.zst")

    assert [record.text for record in records] == TEXTS


def test_columns_of_a_row_are_those_of_a_json_line(tmp_path: Path) -> None:
    data = table(
        [
            ["license", "text", "URL", "source", "score"],
            ["CC BY 4.0", "Salam", "https://a.az/1", "crawl", ".5"],
        ]
    )

    records, stats = read(tmp_path, data)

    (record,) = records
    assert (record.text, record.url, record.licence) == ("Salam", "https://a.az/1", "CC BY 4.0")
    assert record.source == "a.csv:2 crawl"
    assert stats.columns_not_read == {"score": 1}


def test_a_row_is_named_by_the_line_in_which_it_begins(tmp_path: Path) -> None:
    records, _ = read(tmp_path, 'text\n"bir\niki"\n\n\nüç\n')

    assert [record.source for record in records] == ["a.csv:2", "a.csv:6"]


@pytest.mark.parametrize(
    ("data", "good", "places"),
    [
        # Ragged: too few cells, too many; empty ones at the end are a habit of Excel.
        ("id,text\n1\n2,b\n3,c,d\n4,e,,\n", ["b", "e"], ["a.csv:2: 1 cells", "a.csv:4: 3 cells"]),
        # A quote that closes too early, and one that nobody closes.
        ('id,text\n1,"a"b\n2,"c"d,e\n3,f\n', ['"a"b', "f"], ["a.csv:3: cannot be cut into cells"]),
        ('id,text\n1,"a\n2,b\n3,c\n', ["b", "c"], ["a.csv:2: cannot be cut into cells (unexpected end"]),
        ("id,text\n1,a\0b\n2,c\n", ["a\0b", "c"], []),
    ],
)
def test_a_row_that_cannot_be_cut_is_bad_and_the_next_are_read(
    tmp_path: Path, data: str, good: list[str], places: list[str]
) -> None:
    records, stats = read(tmp_path, data)

    assert [record.text for record in records] == good
    assert stats.bad == len(places)
    assert all(place.startswith(start) for place, start in zip(stats.places, places, strict=True))


def test_a_tsv_without_quoting_is_read_line_by_line(tmp_path: Path) -> None:
    lines = ['"Salam" dedi', '"Gəl', 'sən də"', 'dırnaq " ortada', "son"]
    data = "id\ttext\n" + "".join(f"{number}\t{line}\n" for number, line in enumerate(lines))

    records, stats = read(tmp_path, data, "a.tsv")

    assert [record.text for record in records] == lines
    assert stats.bad == 0


def test_a_huge_cell_and_a_huge_line_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separated_file, "MAX_LINE_BYTES", 1_000)
    long = "x" * 5_000

    records, stats = read(tmp_path, f'id,text\n1,a\n2,{long}\n3,b\n4,"{"y " * 200}\n{"z," * 400}"\n5,c\n')

    assert [record.text for record in records] == ["a", "b", "c"]
    assert stats.places[0].startswith("a.csv:3: cannot be cut into cells (line of 4.9 KiB is longer than")
    assert [place.partition(": ")[0] for place in stats.places] == ["a.csv:3", "a.csv:5", "a.csv:6"]


def test_a_long_line_within_a_quote_that_nobody_closes_costs_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(separated_file, "MAX_LINE_BYTES", 1_000)

    records, stats = read(tmp_path, f'id,text\n1,"a\n2,b\n3,{"x" * 5_000}\n4,c\n')

    assert [(record.source, record.text) for record in records] == [("a.csv:3", "b"), ("a.csv:5", "c")]
    assert [place.partition(": ")[0] for place in stats.places] == ["a.csv:2", "a.csv:4"]


def test_quotes_that_nobody_closes_are_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(separated_file, "MAX_LINE_BYTES", 20_000)
    read_lines = 0
    following = separated_file._Lines.__next__

    def counted(self: separated_file._Lines) -> str:
        nonlocal read_lines
        read_lines += 1
        return following(self)

    monkeypatch.setattr(separated_file._Lines, "__next__", counted)

    records, stats = read(tmp_path, "id,text\n" + 'c","d\n' * 20_000)

    assert read_lines < 8 * 20_000
    assert len(records) + stats.bad == 20_000


def test_a_row_that_is_not_utf_8_is_bad(tmp_path: Path) -> None:
    data = b"text\n" + "Salam dünya və sən\n".encode() * 100 + b"\xff\xfe\n" + b"son\n"

    records, stats = read(tmp_path, data)

    assert len(records) == 101
    assert stats.places == ["a.csv:102: not UTF-8"]


def test_a_file_in_a_code_page_is_decoded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [["text"], *(["Şəhərdə günəş çıxdı, ağaclar yaşıllaşdı"] for _ in range(20))]
    data = table(rows).replace("ə", "e").encode("cp1254")

    records, stats = read(tmp_path, data)

    assert records[0].text == "Şeherde güneş çıxdı, ağaclar yaşıllaşdı"
    assert stats.recoded == 1
    assert "a.csv: not UTF-8; read as" in caplog.text


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
@pytest.mark.parametrize("num_rows", [20_000, 100_000])  # damage before and behind the first MiB
def test_damaged_packed_data_ends_the_file_and_not_the_rows_before(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], num_rows: int
) -> None:
    rows = [["text"], *([f"sətir {number} {number * 7919 % 99991}"] for number in range(num_rows))]
    packed = pack(table(rows).encode())

    records, stats = read(tmp_path, packed[: len(packed) * 2 // 3], f"a.csv{suffix}")

    assert num_rows / 10 < len(records) < num_rows
    assert stats.bad == 1
    assert "compressed data is damaged from here on" in stats.places[0]


def test_a_table_without_the_column_names_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.csv: no column 'text' \(clean\.text_field\) among 'id', 'mətn'; the"
    ) as raised:
        read(tmp_path, "id;mətn\n1;a\n")
    assert raised.value.exit_code == 3
    with pytest.raises(DataError, match="2 columns are named 'text'; rename all but one"):
        read(tmp_path, "text,text\na,b\n")
    with pytest.raises(DataError, match=r"a\.csv:1: the row with the names of the columns cannot be read"):
        read(tmp_path, 'id,"te"xt,c\n1,a\n')
    assert read(tmp_path, "")[0] == read(tmp_path, "text\n")[0] == []


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("id,text", ","),
        ("id;text", ";"),
        ("id\ttext", "\t"),
        ("\n \nid;text", ";"),
        ("a;b,c,d;text;e", ";"),
        ('"a;b;c",text', ","),
        ("sep=|\nid|text", "|"),
    ],
)
def test_the_separator_is_the_one_that_cuts_out_the_column(header: str, separator: str) -> None:
    read = SeparatedFile(io.StringIO(f"{header}\n", newline=""), "a.csv", "text")

    assert read.separator == separator
    assert "text" in read.columns


def test_another_separator_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        read(tmp_path, "id\ttext\n1\ta\n")
    assert "a.csv: columns are separated by tabs" in caplog.text


CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(rows=st.lists(st.tuples(CELLS, CELLS), max_size=8), delimiter=st.sampled_from(",;|"))
@settings(max_examples=200, deadline=None)
def test_what_a_writer_of_csv_writes_is_read_as_it_was(rows: list[tuple[str, str]], delimiter: str) -> None:
    data = table([["id", "text"], *map(list, rows)], delimiter)

    read = [cells for _, cells in SeparatedFile(io.StringIO(data, newline=""), "a.csv", "text").rows()]

    assert read == [list(row) for row in rows if any(row)]


def test_a_large_table_is_one_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(table([["text"], *(["a\nb" * 1_000] for _ in range(2_000))]))

    assert len(plan_shards([str(path)], MIB, 1)) == 1
    assert suffix_of("a.TSV.GZ") == ".tsv.gz"


def test_a_corpus_of_tables_is_that_of_json_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = texts(30)
    lines = write_jsonl(tmp_path / "a.jsonl", own)
    (tmp_path / "a.csv").write_text(
        table([["text", "score"], *([text, "1"] for text in own)]), encoding="utf-8"
    )

    with caplog.at_level(logging.INFO):
        of_table = clean(tmp_path / "table", tmp_path / "a.csv")

    assert [each.text for each in documents(of_table)] == [
        each.text for each in documents(clean(tmp_path / "lines", lines))
    ]
    assert caplog.text.count("clean.inputs: columns that are not read: score (1 file)") == 1
    assert stats(of_table)["bad"] == 0
    assert content(of_table)


def test_a_workbook_is_read_as_a_table_is_from_the_sheet_with_the_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sheets = {
        "Siyahı": [("ad", "say"), ("a", 1)],
        "Mətn": [
            ("url", "text", "qeyd"),
            ("https://a.az/1", "bir", 7),
            (None, 42),
            (),
            ("https://a.az/2", "iki"),
        ],
    }
    path = write_workbook(tmp_path / "a.xlsx", sheets)

    with caplog.at_level(logging.INFO):
        records, stats = read(tmp_path, path.read_bytes(), "a.xlsx")

    assert [(record.source, record.url, record.text) for record in records] == [
        ("a.xlsx:2", "https://a.az/1", "bir"), ("a.xlsx:3", "", "42"), ("a.xlsx:5", "https://a.az/2", "iki"),
    ]  # fmt: skip
    assert set(stats.columns_not_read) == {"qeyd"}
    assert (
        "a.xlsx: sheet 'Siyahı' is not read, for its columns (ad, say) are not those of 'Mətn'" in caplog.text
    )
    with pytest.raises(DataError, match=r"a\.xlsx: no column 'mətn' \(clean\.text_field\) among 'ad', 'say'"):
        read(tmp_path, path.read_bytes(), "a.xlsx", "mətn")


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps([{"text": "bir"}, {"text": "iki"}], indent=1).encode()),
        ("a.json", line("bir") + line("iki")),
        ("a.json.gz", gzip.compress(line("bir") + b"\n" + line("iki"))),
        ("a.json.zst", zstandard.compress(b'{"text":\n"bir"}\n{"text":\n"iki"}')),
    ],
)
def test_a_json_file_is_a_list_or_objects_one_after_another(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)

    found, read_stats = read_file(tmp_path / name)

    assert [raw.text for raw in found] == ["bir", "iki"]
    assert read_stats.bad == 0


@pytest.mark.parametrize(
    ("content", "texts", "why"),
    [
        (b'[{"text": "bir"}, 7, {"text": "iki"}]', ["bir", "iki"], "a.json:2: not a JSON object but a int"),
        (b'[{"text": "bir"}, {"text" "iki"}]', ["bir"], "a.json:2: not JSON from here on: "),
        (line("bir") + b"{\n" + line("iki"), ["bir", "iki"], "a.json:2: not JSON: "),
        (b'[{"text": "b\xff"}]', [], "a.json:1: not JSON from here on: 'utf-8' codec"),
    ],
)
def test_what_is_bad_in_a_json_file_is_counted_with_its_place(
    tmp_path: Path, content: bytes, texts: list[str], why: str
) -> None:
    (tmp_path / "a.json").write_bytes(content)

    found, read_stats = read_file(tmp_path / "a.json")

    assert [raw.text for raw in found] == texts
    assert read_stats.places[0].startswith(why)
