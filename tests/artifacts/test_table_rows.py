"""Tables are read within bounds, whatever they unpack to."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import table_rows
from anadil.artifacts.line_reader import TooLong
from anadil.artifacts.parquet_pages import column_pages
from anadil.artifacts.table_rows import TooLargeError, arrow_batches, batch_rows, parquet_batches
from anadil.core.format import KIB, MIB
from tests.kit.child import peak_memory

ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "text": "şəhər" * number,
        "turns": [{"role": "user", "content": "a" * number}] * (number % 4),
    }
    for number in range(300)
]


def repeated(value: str, times: int) -> pa.DictionaryArray:
    """A text that is stored once and stands in many places."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([value]))


def in_one_row(values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays([0, len(values)], values)


def rows_of(path: Path, **settings: Any) -> list[Any]:
    with path.open("rb") as stream:
        return [
            row for batch in parquet_batches(stream, path.name, 16, **settings) for row in batch_rows(batch)
        ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "row_group_size": 70, "data_page_size": 100},
        {"use_dictionary": False, "data_page_version": "2.0", "compression": "gzip"},
        {"column_encoding": "DELTA_BYTE_ARRAY", "use_dictionary": False, "column": "text"},
        {"write_statistics": True, "write_page_index": True, "write_page_checksum": True},
    ],
)
def test_rows_are_those_that_were_written(tmp_path: Path, options: dict[str, Any]) -> None:
    columns = [options.pop("column")] if "column" in options else ["id", "text", "turns"]
    pq.write_table(pa.Table.from_pylist(ROWS).select(columns), tmp_path / "a.parquet", **options)

    assert rows_of(tmp_path / "a.parquet") == [{name: row[name] for name in columns} for row in ROWS]


def test_a_dictionary_that_is_given_up_half_way_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [
        {"turns": [{"content": f"{number} {place}" * 99} for place in range(number % 3)]}
        for number in range(900)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", dictionary_pagesize_limit=20_000)

    assert pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).encodings[0] == "PLAIN"
    assert rows_of(tmp_path / "a.parquet") == rows


def test_sizes_and_values_of_pages_are_those_of_their_headers(tmp_path: Path) -> None:
    table = pa.table({"text": ["a" * 1000] * 50, "turns": [["b", None]] * 50})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="zstd")

    with (tmp_path / "a.parquet").open("rb") as stream:
        metadata = pq.read_metadata(stream)
        text, turns = column_pages(stream, metadata, [0], None)
        [alone] = column_pages(stream, metadata, [0], ["turns"])

    assert text == ("text", text.largest, 50)
    assert 50_000 < text.largest < 51_000 < metadata.row_group(0).column(0).total_uncompressed_size + 1_000
    assert (alone.path, alone.num_values) == (turns.path, 100)


def test_a_page_that_unpacks_to_too_much_is_refused_by_its_own_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "MAX_PAGE_BYTES", 64 * KIB)
    table = pa.table({"a": ["a"], "text": ["b" * 100 * KIB]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="zstd")

    with pytest.raises(TooLargeError, match=r"a.parquet: a page of column 'text' unpacks to .*smaller pages"):
        rows_of(tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet", columns=["a"]) == [{"a": "a"}]


def test_a_list_of_too_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "MAX_CHUNK_VALUES", 1_000)
    pq.write_table(pa.table({"turns": [[None] * 600] * 2}), tmp_path / "a.parquet")

    with pytest.raises(
        TooLargeError, match=r"column 'turns.list.element' holds 1,200 values in one row group"
    ):
        rows_of(tmp_path / "a.parquet")


@pytest.mark.parametrize("make", [repeated, lambda value, times: in_one_row(repeated(value, times))])
def test_a_row_that_a_dictionary_makes_too_long_is_told_by_its_size(
    tmp_path: Path, make: Callable[[str, int], pa.Array]
) -> None:
    column = make("a" * 17 * MIB, 3)
    pq.write_table(pa.table({"a": column, "b": list(range(len(column)))}), tmp_path / "a.parquet")

    rows = rows_of(tmp_path / "a.parquet")

    assert [type(row) for row in rows] == [TooLong] * len(column)
    assert str(rows[0]).startswith("row of ")


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_batches_of_arrow_are_read_unless_they_unpack_to_too_much(
    tmp_path: Path, is_file: bool, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pa.table({"text": pa.array(["a" * 9_000, "b"]), "kind": pa.array(["x", "y"]).dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(str(tmp_path / "a.arrow"), made.schema, options=options) as writer:
        writer.write_table(made)

    def rows() -> Iterator[Any]:
        with pa.memory_map(str(tmp_path / "a.arrow")) as file:
            for batch in arrow_batches(file, "a.arrow"):
                yield from batch_rows(batch)

    assert list(rows()) == made.to_pylist()
    monkeypatch.setattr(table_rows, "MAX_BATCH_BYTES", 9_000)
    if compression:
        with pytest.raises(TooLargeError, match=r"a.arrow: batch \d unpacks to 8.8 KiB"):
            list(rows())
    else:
        assert list(rows()) == made.to_pylist()


CHATS = """
from anadil.artifacts.chat_files import read_chats
from anadil.text.chats import DroppedChats
print(len(list(read_chats([sys.argv[1]], DroppedChats()))))
"""
HELDOUT = """
from anadil.evaluate.heldout import documents_of
print(len(list(documents_of([sys.argv[1]], "messages", "az"))))
"""
ITEMS = """
from anadil.clean.filters.lists import read_items
print(sum(1 for _ in read_items([sys.argv[1]])))
"""
RAW = """
from anadil.clean.read.readers import read_records
from anadil.clean.read.read_stats import ReadStats
stats = ReadStats()
list(read_records(sys.argv[1], "a", "messages", stats))
print(stats.bad, stats.places)
"""
DOCTOR = """
from anadil.core.stages import STAGES
from anadil.preflight.inputs import inspect_files
from anadil.recipe.sections import Recipe
recipe = Recipe.model_validate({"finetune": {"inputs": [sys.argv[1]]}})
print(inspect_files(STAGES["finetune"], recipe))
"""


@pytest.mark.parametrize(
    ("reader", "is_refused"), [(CHATS, True), (HELDOUT, True), (ITEMS, True), (RAW, False), (DOCTOR, True)]
)
@pytest.mark.parametrize("nested", [True, False])
def test_every_reader_of_tables_bounds_its_memory(
    tmp_path: Path, reader: str, is_refused: bool, nested: bool
) -> None:
    text = repeated("a" * 17 * MIB, 400)
    column = in_one_row(text) if nested else text
    pq.write_table(pa.table({"messages": column}), tmp_path / "a.parquet", compression="zstd")
    code = f"import sys\ntry:\n{indented(reader)}\nexcept Exception as error:\n    print('refused', error)\n"

    peak, printed = peak_memory(code, tmp_path / "a.parquet")

    assert printed.startswith("refused") == is_refused
    assert "longer than 16.0 MiB" in printed or "is not text but a list" in printed
    assert peak < 1_000


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())
