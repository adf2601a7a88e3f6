"""Tables are read within bounds, whatever they unpack to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import table_rows
from anadil.artifacts.line_reader import TooLong
from anadil.artifacts.table_rows import arrow_batches, batch_rows, parquet_batches
from anadil.core.format import MIB
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


def test_rows_that_are_too_much_together_are_read_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "DECODED_BYTES", 192 * MIB)
    rows = [{"text": f"{number}" + "b" * 14 * MIB} for number in range(16)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", compression="zstd", write_batch_size=1)
    pa.default_memory_pool().release_unused()

    assert rows_of(tmp_path / "a.parquet") == rows


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
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_batches_of_arrow_are_those_that_were_written(
    tmp_path: Path, is_file: bool, compression: str | None
) -> None:
    made = pa.table({"text": pa.array(["a" * 9_000, "b"]), "kind": pa.array(["x", "y"]).dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(str(tmp_path / "a.arrow"), made.schema, options=options) as writer:
        writer.write_table(made)

    with pa.memory_map(str(tmp_path / "a.arrow")) as file:
        rows = [row for batch in arrow_batches(file, "a.arrow") for row in batch_rows(batch)]

    assert rows == made.to_pylist()


BOMBED = """
import os, resource, sys
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others keep a gigabyte at hand
from pathlib import Path
from anadil.artifacts import table_rows
from anadil.artifacts.text_files import table_rows as rows_of
table_rows.DECODED_BYTES = 128 * 1024**2
limits, rows = resource.getrlimit(resource.RLIMIT_DATA), []
try:
    rows.extend(rows_of(Path(sys.argv[1]), Path(sys.argv[1]).name))
except table_rows.TooLargeError as error:
    print(len(rows), limits == resource.getrlimit(resource.RLIMIT_DATA), error)
"""


def test_a_page_whose_bytes_are_not_those_of_its_checksum_is_not_read(tmp_path: Path) -> None:
    path, table = tmp_path / "a.parquet", pa.table({"text": ["soyuq külək"] * 9})
    pq.write_table(table, path, write_page_checksum=True, compression="none", write_statistics=False)
    assert len(rows_of(path)) == 9
    path.write_bytes(path.read_bytes().replace(b"soyuq", b"qayna"))

    with pytest.raises(OSError, match="CRC checksum verification failed"):
        rows_of(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_page_or_batch_that_unpacks_to_too_much_is_refused_with_what_to_do(
    tmp_path: Path, name: str
) -> None:
    path, schema = str(tmp_path / name), pa.schema({"text": pa.string()})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    is_arrow = name.endswith("arrow")
    with (
        pa.ipc.new_file(path, schema, options=options)
        if is_arrow
        else pq.ParquetWriter(path, schema, compression="zstd") as file
    ):
        for text in ("sound", "b" * 256 * MIB):
            file.write_table(pa.table({"text": [text]}))

    peak, printed = peak_memory(BOMBED, path)

    assert Path(path).stat().st_size < 100_000
    assert printed.startswith(f"1 True {name}: a page or batch unpacks to more than 128.0 MiB")
    assert "write_batch_size=16" in printed
    assert peak < 250


CHATS = """
from anadil.artifacts.chat_files import read_chats
from anadil.text.chats import DroppedChats
print(len(list(read_chats([sys.argv[1]], DroppedChats()))))
"""
HELDOUT = """
from anadil.artifacts.scored_text import documents_of
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
    assert peak < 1_500


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())
