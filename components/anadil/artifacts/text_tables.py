"""Reader of CSV, TSV and Excel files whose first row names the columns."""

import csv
import logging
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any
from xml.etree import ElementTree as ET

from anadil.artifacts.line_reader import MAX_LINE_BYTES
from anadil.core.errors import DataError
from anadil.core.format import MIB, human_bytes

log = logging.getLogger(__name__)

SEPARATED = (".csv", ".tsv")
WORKBOOK = ".xlsx"
TEXT_TABLES = (*SEPARATED, WORKBOOK)
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}
"""Separators of columns, the likeliest first: Excel writes `;` where the comma is a decimal point."""
TOLD = re.compile(r"sep=(.)\r?\n")
"""First line in which Excel is told the separator."""
BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
SAVE = 'save it as UTF-8; Excel calls that "CSV UTF-8"'
MAX_PART_BYTES = 256 * MIB
"""Most bytes of a sheet, or of all texts of a workbook, unpacked; the texts are held in memory. Chosen by us."""
STRINGS, BOOK, BOOK_RELATIONS = "xl/sharedStrings.xml", "xl/workbook.xml", "xl/_rels/workbook.xml.rels"
"""Parts of a workbook. Source: ECMA-376, part 1, section 12."""
RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
STRICT_RELATION = "{http://purl.oclc.org/ooxml/officeDocument/relationships}id"
CELL = re.compile(r"([A-Z]+)\d*")
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
"""A character that XML cannot hold. Source: ECMA-376, part 1, section 22.9.2.19."""

Row = tuple[int, dict[str, object]]


def separated_rows(path: Path, name: str, suffix: str) -> Iterator[Row]:
    """Yield each row with the number of its line; a cell without text is None.

    Raises:
        DataError: It is damaged, or its rows have more cells than columns; with its place.
    """
    cells = _workbook_cells(path, name) if suffix == WORKBOOK else _separated_cells(path, name, suffix)
    columns: list[str] = []
    for number, row in cells:
        if not any(cell not in ("", None) for cell in row):
            continue
        if not columns:
            columns = _columns(row, f"{name}:{number}")
            continue
        if any(cell not in ("", None) for cell in row[len(columns) :]):
            raise DataError(
                f"{name}:{number}: {len(row)} cells, and {len(columns)} columns are named; put a text that holds the "
                "separator between quotes"
            )
        padded = [*row, *[None] * (len(columns) - len(row))]
        yield number, {key: cell or None for key, cell in zip(columns, padded, strict=False)}


def _columns(row: Sequence[object], place: str) -> list[str]:
    names = [str(cell or "").strip() for cell in row]
    while names and not names[-1]:
        names.pop()
    named = [name or f"column {number}" for number, name in enumerate(names, 1)]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{place}: two columns are called {twice!r}; rename one")
    return named


def _separated_cells(path: Path, name: str, suffix: str) -> Iterator[tuple[int, list[str]]]:
    with path.open("rb") as file:
        encoding = BYTE_ORDER_MARKS.get(file.read(2), "utf-8-sig")
    csv.field_size_limit(MAX_LINE_BYTES)
    last = 0
    try:
        with path.open(encoding=encoding, newline="") as text:
            first = text.readline(MAX_LINE_BYTES)
            declared = TOLD.fullmatch(first)
            if not declared:
                text.seek(0)
            separator = declared[1] if declared else separator_of(first, SEPARATORS[suffix])
            reader = csv.reader(_lines(text, name), delimiter=separator, strict=True)
            for row in reader:
                yield last + 1 + bool(declared), row
                last = reader.line_num
    except UnicodeError as error:
        raise DataError(f"{name}: is not {encoding.partition('-sig')[0].upper()} ({error}); {SAVE}") from None
    except csv.Error as error:
        raise DataError(
            f"{name}:{last + 1}: cannot be cut into cells ({error}); between quotes write a quote twice"
        ) from None


def _lines(text: IO[str], name: str) -> Iterator[str]:
    while line := text.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES and not line.endswith(("\n", "\r")):
            raise DataError(f"{name}: a line is longer than {human_bytes(MAX_LINE_BYTES)}; is it a table?")
        yield line


def separator_of(first: str, candidates: str, column: str = "") -> str:
    """Return the sign that stands most often outside quotes in the header line, if need be one that cuts out `column`."""
    plain = re.sub(r'"[^"]*"?', "", first)

    def has_column(sign: str) -> bool:
        return bool(column) and column in (name.strip().strip('"') for name in first.split(sign))

    return max(candidates, key=lambda sign: (has_column(sign), plain.count(sign)))


def _workbook_cells(path: Path, name: str) -> Iterator[tuple[int, list[object]]]:
    try:
        with zipfile.ZipFile(path) as book:
            strings = list(_strings(book, name)) if STRINGS in book.namelist() else []
            with _part(book, _first_sheet(book, name), name) as sheet:
                for number, row in enumerate(_elements(sheet, "row"), 1):
                    yield int(row.get("r", number)), _cells(row, strings)
    except (
        zipfile.BadZipFile, ET.ParseError, KeyError, ValueError, IndexError, RuntimeError, OSError,
    ) as error:  # fmt: skip
        raise DataError(
            f"{name}: is not a workbook that can be read ({error}); save it again without a password, or as .csv"
        ) from None


def _part(book: zipfile.ZipFile, part: str, name: str) -> IO[bytes]:
    # No more than this number is unpacked, whatever is there.
    if (size := book.getinfo(part).file_size) > MAX_PART_BYTES:
        raise DataError(
            f"{name}: {part} holds {human_bytes(size)}, and {human_bytes(MAX_PART_BYTES)} are read; save it as .csv"
        )
    return book.open(part)


def _first_sheet(book: zipfile.ZipFile, name: str) -> str:
    with _part(book, BOOK, name) as file:
        sheets = [sheet for sheets in _elements(file, "sheets") for sheet in sheets]
    if len(sheets) > 1:
        others = ", ".join(sheet.get("name", "") for sheet in sheets[1:])
        log.warning("%s: only its first sheet is read, not %s", name, others)
    relation = sheets[0].get(RELATION) or sheets[0].get(STRICT_RELATION)
    with _part(book, BOOK_RELATIONS, name) as file:
        targets = {
            each.get("Id"): each.get("Target", "")
            for all_ in _elements(file, "Relationships")
            for each in all_
        }
    target = PurePosixPath(targets[relation])
    return str(target).lstrip("/") if target.is_absolute() else f"xl/{target}"


def _strings(book: zipfile.ZipFile, name: str) -> Iterator[str]:
    with _part(book, STRINGS, name) as file:
        yield from map(_text, _elements(file, "si"))


def _elements(file: IO[bytes], tag: str) -> Iterator[Any]:
    """Yield each element of a name; it is freed when the next is asked for."""
    parents: list[Any] = []
    for event, element in ET.iterparse(file, ("start", "end")):  # noqa: S314  expat bounds entities, `_part` the size
        if event == "start":
            parents.append(element)
            continue
        parents.pop()
        if _tag(element) == tag:
            yield element
            (parents[-1] if parents else element).clear()


def _cells(row: Any, strings: Sequence[str]) -> list[object]:
    cells: list[object] = []
    for cell in row:
        if letters := CELL.fullmatch(cell.get("r", "")):
            place = 0
            for letter in letters[1]:
                place = place * 26 + ord(letter) - ord("A") + 1
            cells += [None] * min(place - 1 - len(cells), 16_384)  # columns of a sheet: ECMA-376
        cells.append(_value(cell, strings))
    return cells


def _value(cell: Any, strings: Sequence[str]) -> object:
    kind = cell.get("t", "n")
    value = next((each.text or "" for each in cell if _tag(each) == "v"), "")
    if kind == "inlineStr":
        return "".join(_text(each) for each in cell if _tag(each) == "is")
    if kind == "s":
        return strings[int(value)]
    if kind == "b":
        return value == "1"
    return None if kind == "e" else _unescaped(value)


def _text(element: Any) -> str:
    """The text of an element, without the reading of Japanese characters that stands beside it."""
    parts = [
        _text(each) if _tag(each) == "r" else each.text or "" for each in element if _tag(each) in ("r", "t")
    ]
    return _unescaped("".join(parts))


def _unescaped(text: str) -> str:
    return ESCAPED.sub(lambda at: chr(int(at[1], 16)), text)


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]
