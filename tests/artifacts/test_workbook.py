"""Workbooks as people keep questions in them, made by openpyxl and changed by hand."""

import datetime as dt
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.chat_files import read_chats
from anadil.artifacts.text_files import separated_rows
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.core.errors import DataError
from anadil.text.chats import DroppedChats
from tests.kit.workbooks import write_workbook

NAMES = ("Sual", "Cavab")
ROWS = [("Saat neçədə açılır?", "Səhər doqquzda."), ("Bağlanır?", "Axşam\naltıda.")]


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """Numbers and cells of a workbook's rows."""
    return [
        (number, *(row.values() if isinstance(row, dict) else (row,)))
        for number, row in separated_rows(path, path.name)
    ]


def test_chats_of_a_workbook_are_read_with_the_columns_that_the_recipe_names(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "A.XLSX", {"Suallar": [NAMES, *ROWS]})

    chats = read_chats([str(path)], DroppedChats(), columns={"question": "Sual", "answer": "Cavab"})

    assert [tuple(turn.content for turn in chat.messages) for chat in chats] == ROWS


def test_sheets_with_the_same_columns_are_read_and_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sheets = {"Haqqında": [("Bu fayl suallar üçündür",)], "Bakı": [NAMES, ROWS[0]], "Gəncə": [(), NAMES, ROWS[1]],
        "Arxiv": [("Tarix", "Qeyd", "Ad"), ("a", "b", "c")], "Gizli": [NAMES, ("gizli", "gizli")]}  # fmt: skip
    path = write_workbook(tmp_path / "a.xlsx", sheets, lambda book: hide(book, "Gizli"))

    with caplog.at_level(logging.INFO):
        rows = rows_of(path)

    assert rows == [(2, *ROWS[0]), ("Gəncə!3", *ROWS[1])]
    assert "a.xlsx: sheet 'Arxiv' is not read, for its columns (Tarix, Qeyd, Ad) are not those" in caplog.text
    assert "a.xlsx: sheet 'Haqqında' is not read" in caplog.text
    assert "a.xlsx: sheet 'Gizli' is hidden and not read" in caplog.text


def hide(book: Any, sheet: str) -> None:
    book[sheet].sheet_state = "hidden"


def test_hidden_rows_and_columns_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hide_parts(book: Any) -> None:
        for row in (1, 4):
            book["Suallar"].row_dimensions[row].hidden = True
        book["Suallar"].column_dimensions.group("B", "C", hidden=True)
        hide(book, "Gizli")

    table = [("köhnə", "köhnə", "köhnə", "köhnə"), ("text", "qeyd", "qeyd 2", "url"), ("Bir", "x", "y", "a"), ("İki", "x", "y", "b"), ("Üç",)]  # fmt: skip
    sheets = {"Başqa": [], "Suallar": table, "Gizli": [("text",), ("gizli",)]}
    path = write_workbook(tmp_path / "a.xlsx", sheets, hide_parts)
    stats = ReadStats()

    texts = [raw.text for raw in read_records(str(path), path.name, "text", stats)]

    assert texts == ["Bir", "Üç"]
    assert stats.not_read == {"hidden sheet": 1, "hidden column": 2, "hidden row": 2}
    assert "a.xlsx: sheet 'Suallar': 2 hidden rows not read; show them if they matter" in caplog.text


def test_a_merged_text_belongs_to_each_of_its_rows_and_a_title_to_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("Suallar", None), (), NAMES, ("Bağlanır?", "Altıda."), ("Nə vaxt bağlanır?", None), ("Bölmə", None)]  # fmt: skip

    def merge(book: Any) -> None:
        for cells in ("A1:B1", "B4:B5", "A6:B6"):
            book.active.merge_cells(cells)

    with caplog.at_level(logging.INFO):
        read = rows_of(write_workbook(tmp_path / "a.xlsx", {"S": rows}, merge))

    assert read == [(4, "Bağlanır?", "Altıda."), (5, "Nə vaxt bağlanır?", "Altıda."), (6, "Bölmə", None)]
    assert "row 1 of sheet 'S' is a title over the table" in caplog.text
    assert "1 text of merged cells belong to each row" in caplog.text


def test_names_in_two_rows_are_refused(tmp_path: Path) -> None:
    rows = [("Sual", "Cavab", None), (None, "qısa", "uzun"), ("a", "b", "c")]
    path = write_workbook(tmp_path / "a.xlsx", {"S": rows}, lambda book: book.active.merge_cells("A1:A2"))

    with pytest.raises(DataError, match=r"a\.xlsx: sheet 'S', row 1: the names of the columns stand in two"):
        rows_of(path)


def test_a_formula_without_a_value_is_empty_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [NAMES, ("Cəm?", "=1+1"), ("Neçə?", '=CONCATENATE("a","b")'), ("Bir?", "Bir.")]

    read = rows_of(write_workbook(tmp_path / "a.xlsx", {"S": rows}))

    assert read == [(2, "Cəm?", None), (3, "Neçə?", None), (4, "Bir?", "Bir.")]
    assert "2 formulas without a value, such as B2, are read as empty; open the workbook" in caplog.text


def test_a_formula_that_was_computed_has_its_value_also_as_a_name(tmp_path: Path) -> None:
    path = write_workbook(
        tmp_path / "a.xlsx", {"S": [("Sual", '="Cavab"'), ("Cəm?", "=1+1"), ("Səhv?", "=1/0")]}
    )
    values = {b"B1": b't="str"><f>"Cavab"</f><v>Cavab', b"B2": b"><f>1+1</f><v>2",
        b"B3": b't="e"><f>1/0</f><v>#DIV/0!'}  # fmt: skip
    change_sheet(path, lambda xml: with_values(xml, values))

    assert list(separated_rows(path, "a.xlsx")) == [
        (2, {"Sual": "Cəm?", "Cavab": "2"}),
        (3, {"Sual": "Səhv?", "Cavab": None}),
    ]


def with_values(xml: bytes, values: dict[bytes, bytes]) -> bytes:
    for cell, inner in values.items():
        before, _, rest = xml.partition(b'<c r="' + cell + b'"')
        xml = before + b'<c r="' + cell + b'" ' + inner + b"</v></c>" + rest.partition(b"</c>")[2]
    return xml


def change_sheet(path: Path, change: Callable[[bytes], bytes]) -> None:
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    with zipfile.ZipFile(path, "w") as book:
        for name, data in parts.items():
            book.writestr(name, change(data) if name.endswith("sheet1.xml") else data)


def test_numbers_shares_and_dates_are_read_plainly_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [0.1 + 0.2, 42, 0.18, dt.date(2026, 11, 26), dt.datetime.fromisoformat("2026-11-26T09:30"), 5.5, True,
        "_x000D_a"]  # fmt: skip
    rows = [NAMES, *((f"s{number}", value) for number, value in enumerate(values))]

    read = [cells[2] for cells in rows_of(write_workbook(tmp_path / "a.xlsx", {"S": rows}))]

    assert read == ["0.3", "42", "0.18", "2026-11-26", "2026-11-26T09:30:00", "5.5", True, "\ra"]
    assert "not in their formats, such as in row 2, column 2 of sheet 'S'" in caplog.text


def test_a_row_with_more_cells_than_names_is_bad(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "a.xlsx", {"S": [NAMES, ("a", "b", "c"), ROWS[0]]})
    dropped = DroppedChats()

    chats = list(read_chats([str(path)], dropped, columns={"question": "Sual", "answer": "Cavab"}))

    assert len(chats) == 1
    assert dropped.places["bad_row"] == ["a.xlsx:2 ('a cell beyond the 2 columns that row 1 names')"]


@pytest.mark.parametrize("content", [b"\xd0\xcf\x11\xe0 with a password", b"PK\x03\x04 torn", b""])
def test_what_is_no_workbook_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.xlsx").write_bytes(content)

    with pytest.raises(DataError, match=r"a\.xlsx: is not a workbook .* without a password, or as \.csv"):
        list(read_chats([str(tmp_path / "a.xlsx")], DroppedChats()))


@pytest.mark.parametrize(
    "change",
    [
        lambda xml: xml[: len(xml) // 2],
        lambda xml: xml.replace(b't="inlineStr">', b't="s"><v>99</v>'),
        lambda xml: xml.replace(b't="inlineStr">', b't="n"><v>x</v>'),
    ],
)
def test_damage_within_a_workbook_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = write_workbook(tmp_path / "a.xlsx", {"S": [NAMES, *ROWS]})
    change_sheet(path, change)

    with pytest.raises(DataError, match=r"a\.xlsx: is not a workbook that can be read"):
        rows_of(path)


def test_a_workbook_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "a.xlsx", {"S": [NAMES, *ROWS]})
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, data in parts.items():
            with book.open(name, "w", force_zip64=True) as part:
                # A cell in the last row and column: a table of 17 billion cells.
                part.write(data.replace(b'r="2"', b'r="1048576"').replace(b'"A2"', b'"XFD1048576"'))

    with pytest.raises(DataError, match=r"a\.xlsx: takes more than 800.0 MiB of memory, or much more time"):
        rows_of(path)


def test_a_workbook_without_rows_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert rows_of(write_workbook(tmp_path / "a.xlsx", {"S": []})) == []
    assert "a.xlsx: no sheet that is shown holds a row" in caplog.text


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"xl/styles.bin": b"0" * 300_000_000}, r"286\.\d MiB unpacked, more than 256\.0 MiB"),
        ({f"xl/{number}": b"" for number in range(10_001)}, r"10,\d+ parts, more than 10,000"),
        ({"xl/worksheets/sheet1.xml": None}, r"more than 20,000,000 cells"),
    ],
    ids=["bytes", "parts", "merged cells"],
)
def test_limits_hold_for_each_part_whatever_it_is_called(
    tmp_path: Path, parts: dict[str, bytes | None], words: str
) -> None:
    path = write_workbook(tmp_path / "a.xlsx", {"S": [NAMES, *ROWS * 1_000]})
    merged = b"</sheetData><mergeCells>" + b'<mergeCell ref="A2:A2000"/>' * 11_000 + b"</mergeCells>"
    change_sheet(path, lambda xml: xml.replace(b"</sheetData>", merged) if None in parts.values() else xml)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as book:
        for name, data in parts.items():
            if data is not None:
                book.writestr(name, data)

    with pytest.raises(DataError, match=rf"a\.xlsx: is not a workbook that can be read \({words}\)"):
        rows_of(path)
