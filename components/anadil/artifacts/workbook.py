"""Rows of Excel workbooks (.xlsx), as `SeparatedFile` gives those of tables as text.

openpyxl reads them, a row at a time. What it cannot tell of a workbook that is not held as a whole, merged cells and
formulas without a value, is looked for in the sheet's XML.
"""

import datetime as dt
import logging
import re
import warnings
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from anadil.artifacts.ranged import ReadableFile
from anadil.artifacts.separated_file import Fault, Place
from anadil.core.errors import DataError
from anadil.core.format import MIB, counted, human_bytes

log = logging.getLogger(__name__)

WORKBOOK = ".xlsx"
MAX_PART_BYTES = 256 * MIB
"""Most bytes of a sheet, or of all texts of a workbook, unpacked; the texts are held in memory. Chosen by us."""
MAX_ROWS = 1_048_576
"""Rows of a sheet. Source: Excel specifications and limits."""
OVERLAP_BYTES = 64 * 1024
"""Longer than any formula, which has 8,192 characters. Source: Excel specifications and limits."""
MERGED = re.compile(rb'<(?:\w+:)?mergeCell\b[^>]*?\bref="([A-Z]{1,3}\d+:[A-Z]{1,3}\d+)"')
NO_VALUE = re.compile(
    rb'<(?:\w+:)?c\s[^>]*?\br="([A-Z]{1,3}\d+)"[^>]*><(?:\w+:)?f\b(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)'
    rb"(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v></(?:\w+:)?v>)?</(?:\w+:)?c>"
)
"""A cell with a formula that no spreadsheet program has computed: libraries write such files."""
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
"""A character that XML cannot hold. Source: ECMA-376, part 1, section 22.9.2.19."""
COMPUTE = "open the workbook in a spreadsheet program and save it, which computes them"
OTHER_FORM = "save it again as .xlsx without a password, or as .csv"
DAMAGED = (
    zipfile.BadZipFile, zlib.error, SyntaxError, KeyError, ValueError, IndexError, TypeError, AttributeError, RuntimeError,
    OSError, EOFError,
)  # fmt: skip
"""Raised by openpyxl, zipfile and the XML parser on files that are torn, locked or of another kind."""

Cells = list[str | bool | None]


@contextmanager
def open_workbook(file: ReadableFile, name: str, column: str = "") -> Iterator["Workbook"]:
    """Open a workbook for as long as its rows are read.

    Args:
        file: The workbook.
        name: Name with its suffix, for messages.
        column: A column that should be there: the first sheet with it is read.
    """
    with file.open("rb") as stream:
        yield Workbook(stream, name, column)


class Workbook:
    """The first table of a workbook, with the sheets that go on with it under the same names of columns."""

    likely = separator = ""

    def __init__(self, stream: BinaryIO, name: str, column: str) -> None:
        """Read the names of the columns; see `open_workbook`."""
        self._name = name
        with _refusing(name):
            self._book = _open(stream, name)
            sheets = [
                _Sheet(self._book, each, name) for each in self._book.worksheets if _is_shown(each, name)
            ]
        tables = [sheet for sheet in sheets if sheet.columns]
        self.columns: list[str] = []
        self.first_line = 0
        self._sheets: list[_Sheet] = []
        if not tables:
            log.warning("%s: no sheet that is shown holds a row", name)
            return
        first = min(tables, key=lambda sheet: (column not in sheet.columns, len(sheet.columns) < 2))
        self.columns, self.first_line = first.columns, first.header
        self._sheets = [
            first,
            *(each for each in tables if each is not first and each.columns == first.columns),
        ]
        for other in tables:
            if other not in self._sheets:
                log.warning(
                    "%s: sheet %r is not read, for its columns (%s) are not those of %r (%s); save it as a file of its own",
                    name, other.title, ", ".join(other.columns), first.title, ", ".join(first.columns),
                )  # fmt: skip

    def rows(self) -> Iterator[tuple[Place, Cells | Fault]]:
        """Yield each row with text below the names: its number, for further sheets as `Sheet!7`."""
        for number, sheet in enumerate(self._sheets):
            with _refusing(self._name):
                for line, cells in sheet.rows():
                    yield f"{sheet.title}!{line}" if number else line, cells
            sheet.say()


class _Sheet:
    """A sheet whose first row of names is known."""

    def __init__(self, book: Any, sheet: Any, name: str) -> None:
        self.title: str = sheet.title
        self.columns: list[str] = []
        self.header = 0
        self._sheet, self._name, self._book = sheet, name, book
        self._num_filled = 0
        self._formats: dict[str, str] = {}
        # Programs write a size that is wrong; without it all rows are read.
        sheet.reset_dimensions()
        merged, self._no_value = _seen_in_xml(sheet)
        self._spans: dict[int, list[Any]] = defaultdict(list)
        for span in map(_span, merged):
            self._spans[span.min_row].append(span)
        for line, cells in self._cells():
            if sum(map(_holds, cells)) == 1 and any(
                span.max_col > span.min_col for span in self._spans.get(line, ())
            ):
                log.info(
                    "%s: row %d of sheet %r is a title over the table, and is not read",
                    name,
                    line,
                    self.title,
                )
                continue
            self.header, self.columns = line, self._names(line, cells)
            break

    def _names(self, line: int, cells: Cells) -> list[str]:
        where = f"{self._name}: sheet {self.title!r}, row {line}"
        if any(span.max_row > line for span in self._spans.get(line, ())):
            raise DataError(f"{where}: the names of the columns stand in two rows; put them into one row")
        if empty := sorted(cell for cell in self._no_value if re.sub(r"\D", "", cell) == str(line)):
            raise DataError(f"{where}: the name in {empty[0]} is a formula without a value; {COMPUTE}")
        names = ["" if cell is None else str(cell).strip() for cell in cells]
        while names and not names[-1]:
            names.pop()
        return names

    def rows(self) -> Iterator[tuple[int, Cells | Fault]]:
        """Yield the rows below the names."""
        width = len(self.columns)
        open_spans: dict[int, tuple[int, str | bool | None]] = {}
        for line, cells in self._cells():
            if line <= self.header:
                continue
            open_spans |= {
                span.min_col: (span.max_row, cells[span.min_col - 1] if len(cells) >= span.min_col else None)
                for span in self._spans.get(line, ())
            }
            if any(map(_holds, cells[width:])):
                yield (
                    line,
                    Fault(f"a cell beyond the {counted(width, 'column')} that row {self.header} names"),
                )
                continue
            row = [*cells, *[None] * width][:width]
            # A text that is merged over several rows belongs to each of them.
            for column, (last, value) in open_spans.items():
                if line <= last and column <= width and row[column - 1] is None and value is not None:
                    row[column - 1] = value
                    self._num_filled += 1
            yield line, row

    def _cells(self) -> Iterator[tuple[int, Cells]]:
        for line, row in enumerate(self._sheet.iter_rows(), 1):
            if line > MAX_ROWS:
                raise ValueError(f"more than {MAX_ROWS:,} rows")
            cells = [self._value(cell) for cell in row]
            if any(map(_holds, cells)):
                yield line, cells

    def _value(self, cell: Any) -> str | bool | None:
        """The text of a cell as a spreadsheet shows it, as far as that can be told; None for nothing and for errors."""
        value = cell.value
        if value is None or cell.data_type == "e":
            return None
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return ESCAPED.sub(lambda at: chr(int(at[1], 16)), value)
        if isinstance(value, int | float):
            shown: str = cell.number_format
            if shown.endswith("%"):
                return f"{value * 100:.15g}%"
            if shown not in ("General", "@", "0", "0.00", "#,##0", "#,##0.00"):
                self._formats.setdefault(shown, cell.coordinate)
            return f"{value:.15g}" if isinstance(value, float) else str(value)
        if isinstance(value, dt.datetime) and value.time() == dt.time():
            value = value.date()
        self._formats.setdefault(cell.number_format, cell.coordinate)
        return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)

    def say(self) -> None:
        """Log what was read otherwise than a spreadsheet shows it."""
        where = f"{self._name}: sheet {self.title!r}"
        if self._num_filled:
            log.info(
                "%s: %s of merged cells belong to each row of theirs",
                where,
                counted(self._num_filled, "text"),
            )
        if self._no_value:
            first = min(self._no_value, key=lambda cell: (len(cell), cell))
            log.warning(
                "%s: %s without a value, such as %s, are read as empty; %s",
                where, counted(len(self._no_value), "formula"), first, COMPUTE,
            )  # fmt: skip
        if self._formats:
            listed = ", ".join(f"{cell} ({shown})" for shown, cell in list(self._formats.items())[:5])
            log.warning(
                "%s: numbers and dates are read plainly (5, 2026-11-26), not in their formats: %s; if the signs matter, make them text",
                where, listed,
            )  # fmt: skip


def _open(stream: BinaryIO, name: str) -> Any:
    import openpyxl

    with zipfile.ZipFile(stream) as archive:
        for part in archive.infolist():
            # No more than this number is unpacked, whatever is there.
            if part.filename.endswith(".xml") and part.file_size > MAX_PART_BYTES:
                raise DataError(
                    f"{name}: {part.filename} holds {human_bytes(part.file_size)}, and {human_bytes(MAX_PART_BYTES)} are read; "
                    "save it as .csv"
                )
    stream.seek(0)
    # It warns of styles and extensions that it does not keep; nobody here needs them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return openpyxl.load_workbook(stream, read_only=True, data_only=True)


def _is_shown(sheet: Any, name: str) -> bool:
    shown: bool = sheet.sheet_state == "visible"
    if not shown:
        log.info("%s: sheet %r is hidden and not read", name, sheet.title)
    return shown


def _seen_in_xml(sheet: Any) -> tuple[set[str], set[str]]:
    """Ranges of merged cells, and cells with a formula without a value."""
    merged, no_value, rest = set[str](), set[str](), b""
    with sheet._get_source() as part:  # noqa: SLF001  the place of a sheet's XML has no public name
        while piece := part.read(MIB):
            data = rest + piece
            merged |= {each.decode() for each in MERGED.findall(data)}
            no_value |= {each.decode() for each in NO_VALUE.findall(data)}
            rest = data[-OVERLAP_BYTES:]
    return merged, no_value


def _span(reference: str) -> Any:
    from openpyxl.worksheet.cell_range import CellRange

    return CellRange(reference)


def _holds(cell: object) -> bool:
    return cell not in (None, "")


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise DataError(f"{name}: is not a workbook that can be read ({error}); {OTHER_FORM}") from None
