"""Rows of Excel workbooks (.xlsx), as `SeparatedFile` gives those of tables as text.

python-calamine reads a workbook as a whole. So it does that in a process of its own with limits of memory and CPU time,
`python -m anadil.artifacts.workbook`: a file of some kilobytes may unpack to gigabytes.
"""

import datetime as dt
import io
import json
import logging
import re
import resource
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO
from xml.etree import ElementTree as ET

from anadil.artifacts.ranged import ReadableFile
from anadil.artifacts.separated_file import Fault, Place
from anadil.core.errors import DataError
from anadil.core.format import MIB, counted, human_bytes
from anadil.core.processes import data_bytes, last_line, limit, run_child

log = logging.getLogger(__name__)

WORKBOOK = ".xlsx"
MAX_BYTES, MAX_CHARS, MAX_PARTS = 256 * MIB, 64 * MIB, 10_000
"""Most bytes of a workbook and of its parts unpacked, characters of its texts, and parts. Chosen by us."""
MAX_CELLS = 20_000_000
"""Most cells of its sheets, empty ones too, and most cells that merged ones are. Chosen by us."""
MEMORY_BYTES, WALL_S = 800 * MIB, 600.0
"""Limits of the process that reads a workbook. Measured: 100,000 rows of questions take 2 s and 200 MB."""
CPU_S, CPU_S_PER_MIB = 10, 0.25
"""The same: most CPU time, and what each MiB of its parts adds. Measured: 1,000,000 rows take a sixth of that."""
LACK_OF_MEMORY = ("MemoryError", "pointer is null")
"""In the last words of that process."""
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
"""A character that XML cannot hold. Source: ECMA-376, part 1, section 22.9.2.19."""
OTHER_FORM = "save it again as .xlsx without a password, or as .csv"

Cells = list[str | bool | None]
Span = tuple[int, int, int, int]
"""First row, first column, last row and last column of merged cells, from 1 on."""


@contextmanager
def open_workbook(file: ReadableFile, name: str, column: str = "") -> Iterator["Workbook"]:
    """Open a workbook for as long as its rows are read: of the first sheet that has `column`."""
    with file.open("rb") as stream:
        content = _content(stream, name)
    yield Workbook(content, name, column)


def _content(stream: BinaryIO, name: str) -> dict[str, Any]:
    """Let another process read a workbook, and return what is shown of it."""
    if (size := stream.seek(0, io.SEEK_END)) > MAX_BYTES:
        raise DataError(
            f"{name}: has {human_bytes(size)}, more than {human_bytes(MAX_BYTES)}; save it as .csv"
        )
    stream.seek(0)
    limits = (
        f"takes more than {human_bytes(MEMORY_BYTES)} of memory, or much more time to read than one of its size; "
        "save it as .csv"
    )
    try:
        # -P: no module of the current directory is imported.
        done = run_child([sys.executable, "-P", "-m", "anadil.artifacts.workbook"], WALL_S, stream.read())
    except subprocess.TimeoutExpired:
        raise DataError(f"{name}: {limits}") from None
    if done.returncode < 0 or any(sign in last_line(done.stderr) for sign in LACK_OF_MEMORY):
        raise DataError(f"{name}: {limits}")
    if done.returncode:
        raise DataError(
            f"{name}: is not a workbook that can be read ({last_line(done.stderr)}); {OTHER_FORM}"
        )
    content: dict[str, Any] = json.loads(done.stdout)
    return content


class Workbook:
    """The first table of a workbook, with the sheets that go on with it under the same names of columns."""

    likely = separator = ""

    def __init__(self, content: dict[str, Any], name: str, column: str) -> None:
        """Find the names of the columns; see `open_workbook`."""
        self._name = name
        if no_value := content["no_value"]:
            log.warning(
                "%s: %s without a value, such as %s, are read as empty; open the workbook in a spreadsheet program and save it, "
                "which computes them",
                name, counted(len(no_value), "formula"), no_value[0],
            )  # fmt: skip
        if content["plain"]:
            log.warning(
                "%s: numbers and dates are read plainly (0.18, 2026-11-26), not in their formats, such as in %s; if the signs "
                "matter, make them text",
                name, content["plain"],
            )  # fmt: skip
        for title in content["hidden"]:
            log.info("%s: sheet %r is hidden and not read", name, title)
        self.not_read = Counter({"hidden sheet": len(content["hidden"])})
        """Hidden sheets, columns and rows with text, which are left out, by kind."""
        sheets = [
            _Sheet.of(name, each["title"], each["rows"], each["merged"], frozenset(each["hidden"]))
            for each in content["sheets"]
        ]
        tables = [sheet for sheet in sheets if sheet.columns]
        if not tables:
            log.warning("%s: no sheet that is shown holds a row", name)
        tables.sort(key=lambda sheet: (column not in sheet.columns, len(sheet.columns) < 2))
        self._sheets = [sheet for sheet in tables if sheet.columns == tables[0].columns]
        self.columns = tables[0].columns if tables else []
        self.first_line = tables[0].header if tables else 0
        for sheet, each in zip(sheets, content["sheets"], strict=True):
            unseen = (sheet.rows[line - 1] for line in sheet.hidden if line <= len(sheet.rows))
            num_rows = sum(any(map(_is_filled, cells)) for cells in unseen)
            counts = Counter({"hidden column": each["hidden_columns"], "hidden row": num_rows})
            for kind, count in (+counts).items():
                log.warning(
                    "%s: sheet %r: %s not read; show them if they matter",
                    name,
                    sheet.title,
                    counted(count, kind),
                )
            self.not_read += counts
        for other in tables:
            if other not in self._sheets:
                log.warning(
                    "%s: sheet %r is not read, for its columns (%s) are not those of %r (%s); save it as a file of its own",
                    name, other.title, ", ".join(other.columns), tables[0].title, ", ".join(self.columns),
                )  # fmt: skip

    def rows(self) -> Iterator[tuple[Place, Cells | Fault]]:
        """Yield each row with text below the names: its number, for further sheets as `Sheet!7`."""
        for number, sheet in enumerate(self._sheets):
            for line, cells in sheet.below():
                yield f"{sheet.title}!{line}" if number else line, cells


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """A sheet whose first row of names is known."""

    name: str
    title: str
    rows: list[Cells]
    spans: list[Span]
    hidden: frozenset[int]
    header: int
    columns: list[str]

    @classmethod
    def of(
        cls, name: str, title: str, rows: list[Cells], spans: list[Span], hidden: frozenset[int]
    ) -> "_Sheet":
        """Find the row of names."""
        where = f"{name}: sheet {title!r}, row"
        by_line: dict[int, list[Span]] = {}
        for span in spans:
            by_line.setdefault(span[0], []).append(span)
        for line, cells in enumerate(rows, 1):
            texts = ["" if cell is None else str(cell).strip() for cell in cells]
            of_line = by_line.get(line, ())
            if line in hidden:
                continue
            if len([*filter(None, texts)]) == 1 and any(span[3] > span[1] for span in of_line):
                log.info(
                    "%s: row %d of sheet %r is a title over the table, and is not read", name, line, title
                )
            elif any(texts):
                if any(span[2] > line for span in of_line):
                    raise DataError(
                        f"{where} {line}: the names of the columns stand in two rows; put them into one row"
                    )
                while not texts[-1]:
                    texts.pop()
                return cls(
                    name=name, title=title, rows=rows, spans=spans, hidden=hidden, header=line, columns=texts
                )
        return cls(name=name, title=title, rows=rows, spans=spans, hidden=hidden, header=0, columns=[])

    def below(self) -> Iterator[tuple[int, Cells | Fault]]:
        """Yield the rows below the names."""
        width, num_filled = len(self.columns), 0
        # A text that is merged over several rows belongs to each of them.
        for first, column, last, _ in self.spans:
            value = self.rows[first - 1][column - 1] if self.header < first <= len(self.rows) else None
            for line in (
                range(first + 1, min(last, len(self.rows)) + 1)
                if value is not None and column <= width
                else ()
            ):
                if self.rows[line - 1][column - 1] is None:
                    self.rows[line - 1][column - 1] = value
                    num_filled += 1
        if num_filled:
            log.info(
                "%s: sheet %r: %s of merged cells belong to each row of theirs",
                self.name, self.title, counted(num_filled, "text"),
            )  # fmt: skip
        for line, cells in enumerate(self.rows[self.header :], self.header + 1):
            if line in self.hidden:
                continue
            if any(map(_is_filled, cells[width:])):
                yield (
                    line,
                    Fault(f"a cell beyond the {counted(width, 'column')} that row {self.header} names"),
                )
            elif any(map(_is_filled, cells)):
                yield line, [*cells, *[None] * width][:width]


def _is_filled(cell: str | bool | None) -> bool:
    return cell not in (None, "")


def main() -> None:
    """Read a workbook from stdin, within limits, and write what is shown of it as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit(resource.RLIMIT_CPU, CPU_S)
    data = sys.stdin.buffer.read()
    limit(resource.RLIMIT_CPU, CPU_S + int(_part_bytes(data) / MIB * CPU_S_PER_MIB))
    limit(resource.RLIMIT_DATA, data_bytes() + MEMORY_BYTES)
    from python_calamine import CalamineWorkbook, SheetVisibleEnum

    sheets, hidden, plain, num_chars, num_cells = [], [], "", 0, 0
    no_value, unseen = _signs(data)
    with CalamineWorkbook.from_filelike(io.BytesIO(data)) as book:
        for each in book.sheets_metadata:
            if each.visible != SheetVisibleEnum.Visible:
                hidden.append(each.name)
                continue
            sheet = book.get_sheet_by_name(each.name)
            rows: list[Cells] = []
            hidden_rows, columns = unseen.get(each.name, ((), ()))
            hidden_columns = set[int]()
            for line, row in enumerate(sheet.to_python(skip_empty_area=False), 1):
                rows.append([_text(cell) for cell in row])
                for column in (at for span in columns for at in range(span.start, min(span.stop, len(row)))):
                    if _is_filled(rows[-1][column]):
                        hidden_columns.add(column)
                        rows[-1][column] = None
                num_chars += sum(len(cell) for cell in rows[-1] if isinstance(cell, str))
                num_cells += len(row)
                if num_chars > MAX_CHARS:
                    sys.exit(f"more than {MAX_CHARS:,} characters of text")
                if not plain:
                    place = next((place for place, cell in enumerate(row) if _has_format(cell)), None)
                    plain = "" if place is None else f"row {line}, column {place + 1} of sheet {each.name!r}"
            merged = [
                (first_row + 1, first + 1, last_row + 1, last + 1)
                for (first_row, first), (last_row, last) in sheet.merged_cell_ranges or ()
            ]
            # Each is filled row by row; in a workbook of a spreadsheet program none lies on another.
            num_cells += sum(1 + max(0, min(last, len(rows)) - first) for first, _, last, _ in merged)
            if num_cells > MAX_CELLS:
                sys.exit(f"more than {MAX_CELLS:,} cells")
            sheets.append(
                {
                    "title": each.name, "rows": rows, "merged": merged, "hidden": hidden_rows,
                    "hidden_columns": len(hidden_columns),
                }
            )  # fmt: skip
    content = {"sheets": sheets, "hidden": hidden, "plain": plain, "no_value": no_value}
    sys.stdout.buffer.write(json.dumps(content, ensure_ascii=False).encode(errors="replace"))


def _part_bytes(data: bytes) -> int:
    """Bytes of all parts, unpacked, whatever they are called and whoever reads them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sizes = [part.file_size for part in archive.infolist()]
    if len(sizes) > MAX_PARTS:
        sys.exit(f"{len(sizes):,} parts, more than {MAX_PARTS:,}")
    if sum(sizes) > MAX_BYTES:
        sys.exit(f"{human_bytes(sum(sizes))} unpacked, more than {human_bytes(MAX_BYTES)}")
    return sum(sizes)


def _text(value: Any) -> str | bool | None:
    """The text of a cell; None for nothing."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return ESCAPED.sub(lambda at: chr(int(at[1], 16)), value) or None
    if isinstance(value, int | float):
        return f"{value:.15g}"
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


def _has_format(value: Any) -> bool:
    """Return True if a spreadsheet may show a value otherwise: a share of 18 % is .18 in the file."""
    return not isinstance(value, str | bool) and not (isinstance(value, int | float) and value == int(value))


Unseen = tuple[list[int], list[range]]
"""Hidden rows of a sheet, from 1 on, and its hidden columns, from 0 on."""


def _signs(data: bytes) -> tuple[list[str], dict[str, Unseen]]:
    """Return what calamine does not tell: cells with a formula that no program has computed, and what each sheet hides."""
    cells: list[str] = []
    unseen: dict[str, Unseen] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        titles = _titles(archive)
        for name in archive.namelist():
            if name not in titles and not re.fullmatch(r"xl/worksheets/[^/]+\.xml", name):
                continue
            rows, columns = unseen.setdefault(titles.get(name, ""), ([], []))
            with archive.open(name) as part:
                line = 0
                for _, element in ET.iterparse(part):  # noqa: S314  within the limits of the process
                    kind = element.tag.rpartition("}")[2]
                    if kind == "c":
                        texts = {child.tag.rpartition("}")[2]: child.text for child in element}
                        if "f" in texts and not texts.get("v"):
                            cells.append(str(element.get("r")))
                    elif kind == "row":
                        line = int(element.get("r", line + 1))
                        rows.extend([line] if _is_hidden(element, "ht") else [])
                        element.clear()
                    elif kind == "col" and _is_hidden(element, "width"):
                        first = max(1, int(element.get("min", 1)))
                        columns.append(range(first - 1, int(element.get("max", 1))))
    return sorted(cells, key=lambda cell: (len(cell), cell)), unseen


def _is_hidden(element: ET.Element, size: str) -> bool:
    return element.get("hidden") in ("1", "true") or element.get(size) in ("0", "0.0")


def _titles(archive: zipfile.ZipFile) -> dict[str, str]:
    """Title of the sheet in each part of a workbook. Source: ECMA-376, part 1, section 18.2, and part 2, section 9.3."""
    names = set(archive.namelist())
    parts = [name for name in ("xl/_rels/workbook.xml.rels", "xl/workbook.xml") if name in names]
    elements = [element for name in parts for element in ET.fromstring(archive.read(name)).iter()]  # noqa: S314
    targets = {each.get("Id"): each.get("Target", "") for each in elements}
    titles = {}
    for each in (element for element in elements if element.tag.endswith("}sheet")):
        number = next((value for key, value in each.items() if key.endswith("}id")), None)
        target = targets.get(number, "")
        titles[target.removeprefix("/") if target.startswith("/") else f"xl/{target}"] = each.get("name", "")
    return titles


if __name__ == "__main__":
    main()
