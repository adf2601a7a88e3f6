"""Rows of a table as text (.csv, .tsv), whatever its quotes: a row that cannot be cut into cells costs that row alone.

Python's `csv` cuts them. pyarrow's reader is faster, and refuses or drops the block in which a quote is wrong.
"""

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, Self

from anadil.artifacts.line_reader import MAX_LINE_BYTES, TooLong
from anadil.core.errors import DataError

SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}
"""Separators of columns, the likeliest first: Excel writes `;` where the comma is a decimal point."""
TOLD = re.compile(r"sep=(.)\r?\n")
"""First line in which Excel is told the separator."""
PLAIN_TABLES = tuple(SEPARATORS)
PACKED_TABLES = tuple(name + packed for name in PLAIN_TABLES for packed in (".gz", ".zst"))
TABS = tuple(name for name in (*PLAIN_TABLES, *PACKED_TABLES) if name.startswith(".tsv"))
BYTE_ORDER_MARK = "\ufeff"
QUOTE = "put a text that holds the separator or a line end between quotes"
MOST_AGAIN = 4
"""Times the characters of a file that are read again, for quotes that nobody closes."""


Place = int | str
"""Number of a row's line, or the name of its sheet with it."""


class Fault(NamedTuple):
    """Stands for a row that cannot be read."""

    why: str


class SeparatedFile:
    """A table whose first row names its columns."""

    def __init__(self, text: IO[str], name: str, column: str) -> None:
        """Read the first row of `text`, opened with `newline=""`; a `column` that is there tells separators apart."""
        # Cells are bounded by the library, a row of many by `_Lines`.
        csv.field_size_limit(MAX_LINE_BYTES)
        self._lines = _Lines(text)
        candidates = SEPARATORS[".tsv" if name.lower().endswith(TABS) else ".csv"]
        while (first := self._lines.peek()) and not first.strip():
            next(self._lines)
        declared = TOLD.fullmatch(first)
        if declared:
            next(self._lines)
        self.likely = candidates[0]
        self.separator = declared[1] if declared else separator_of(first, candidates, column)
        self._reader = csv.reader(self._lines, delimiter=self.separator, strict=True)
        self.columns: list[str] = []
        self.first_line = 0
        """Number of the line that names them."""
        for number, cells in self._cut():
            if isinstance(cells, Fault):
                raise DataError(
                    f"{name}:{number}: the row with the names of the columns cannot be read: {cells.why}"
                )
            self.columns, self.first_line = [cell.strip() for cell in cells], number
            break
        while self.columns and not self.columns[-1]:
            self.columns.pop()

    def rows(self) -> Iterator[tuple[int, list[str] | Fault]]:
        """Yield each row but the first, and those without any text, with the number of its first line."""
        num_columns = len(self.columns)
        for number, cells in self._cut():
            if (
                isinstance(cells, Fault)
                or len(cells) == num_columns
                or (len(cells) > num_columns and not any(cells[num_columns:]))
            ):
                yield number, cells
            else:
                yield number, Fault(f"{len(cells)} cells, and {num_columns} columns are named; {QUOTE}")

    def _cut(self) -> Iterator[tuple[int, list[str] | Fault]]:
        lines = self._lines
        while True:
            number = lines.begin()
            try:
                cells = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                row, fault = lines.of_row, Fault(f"cannot be cut into cells ({error})")
                yield number, self._plain(row) or fault
                if not lines.take_back():
                    yield from ((number + after, fault) for after in range(1, len(row)))
                continue
            if len(lines.of_row) > 1 and self._is_unquoted(lines.of_row) and lines.take_back():
                cells = self._plain(lines.of_row) or []
            if any(cells):
                yield number, cells

    def _plain(self, row: list[str | TooLong]) -> list[str] | None:
        """Cut a line in which quotes are signs as others; None where it does not have all columns."""
        # Tables made by hand, and nearly all .tsv, know no quoting: `1<tab>"Salam" dedi`.
        first = row[0] if row else None
        if not isinstance(first, str) or (len(row) > 1 and self.separator != "\t"):
            return None
        cells = first.rstrip("\r\n").split(self.separator)
        return cells if len(cells) == len(self.columns) else None

    def _is_unquoted(self, row: list[str | TooLong]) -> bool:
        """Return whether what looks like one row over several lines is as many rows, two of which begin with a quote."""
        tabs = len(self.columns) - 1
        return self.separator == "\t" and tabs > 0 and all(str(line).count("\t") == tabs for line in row)


class _LongError(csv.Error):
    """A line or row that is longer than any may be."""


class _Lines:
    """Lines of bounded length, which can be taken back."""

    def __init__(self, text: IO[str]) -> None:
        self._text = text
        self._back = deque[str | TooLong]()
        self._number = 0
        self._chars = self._read = self._read_again = 0
        self.of_row: list[str | TooLong] = []
        """Lines of the row that is being read."""

    def begin(self) -> int:
        """Begin a row; return the number of its first line."""
        self.of_row, self._chars = [], 0
        return self._number + 1

    def take_back(self) -> bool:
        """Take back all lines of the row but the first; return False where too much has been read again already."""
        # `c","d` on every line opens a quote that no line closes: each would be read up to the longest row.
        if self._read_again > MOST_AGAIN * self._read:
            return False
        self._read_again += self._chars
        self._back.extendleft(reversed(self.of_row[1:]))
        self._number -= max(0, len(self.of_row) - 1)
        return True

    def peek(self) -> str:
        """The next line, without its mark of byte order, which is read again."""
        line = next(self, "").removeprefix(BYTE_ORDER_MARK)
        if line:
            self._back.append(line)
            self._number -= 1
        self.begin()
        return line

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._back.popleft() if self._back else self._line()
        if not line:
            raise StopIteration
        self._number += 1
        self.of_row.append(line)
        if isinstance(line, TooLong):
            raise _LongError(str(line))
        self._chars += len(line)
        if self._chars >= MAX_LINE_BYTES:
            raise _LongError(str(TooLong(self._chars, "row")))
        return line

    def _line(self) -> str | TooLong:
        line = piece = self._text.readline(MAX_LINE_BYTES)
        num_chars = len(line)
        while len(piece) == MAX_LINE_BYTES and not piece.endswith(("\n", "\r")):
            piece = self._text.readline(MAX_LINE_BYTES)
            num_chars += len(piece)
        self._read += num_chars
        return line if num_chars == len(line) < MAX_LINE_BYTES else TooLong(num_chars)


def not_utf_8(values: Iterable[str]) -> Fault | None:
    """The fault of a row with bytes that are not UTF-8, which `surrogateescape` has kept."""
    try:
        for value in values:
            if not value.isascii():
                value.encode()
    except UnicodeEncodeError:
        return Fault("not UTF-8")
    return None


def separator_of(first: str, candidates: str, column: str = "") -> str:
    """Return the sign that stands most often outside quotes in the header line, if need be one that cuts out `column`.

    A tab is the sign of a `.tsv` wherever there is one: without names of columns, the line is sentences with commas.
    """
    if candidates[0] == "\t" and "\t" in first:
        return "\t"
    plain = re.sub(r'"[^"]*"?', "", first)

    def has_column(sign: str) -> bool:
        return bool(column) and column in (name.strip().strip('"') for name in first.split(sign))

    return max(candidates, key=lambda sign: (has_column(sign), plain.count(sign)))
