"""Read rows of .csv, .tsv and .xlsx files; text plain or packed, in whatever encoding it is."""

import io
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any

from anadil.artifacts.line_reader import DAMAGED, unpacked
from anadil.artifacts.ranged import ReadableFile
from anadil.artifacts.separated_file import Fault, Place, SeparatedFile, not_utf_8
from anadil.artifacts.workbook import WORKBOOK, Workbook, open_workbook
from anadil.clean.read.charset import decode_text
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.record_fields import BESIDE, Sides, address_columns, table_columns
from anadil.core.errors import DataError
from anadil.core.format import MIB
from anadil.text.code_pages import say_lost_letters
from anadil.text.letters import letters_of

log = logging.getLogger(__name__)

SAMPLE_BYTES = MIB
"""First bytes of a file, by which its encoding is known."""
NAMES = {"\t": "tabs"}


def separated_values(
    file: ReadableFile,
    name: str,
    text_field: str,
    language: str,
    read_stats: ReadStats,
    sides: Sides = (),
) -> Iterator[tuple[str, dict[str, str] | Fault]]:
    """Yield each row with its place: its values by column, of the columns that clean reads.

    Args:
        name: Name with its suffix, in provenance and messages.
        language: Language whose letters tell code pages apart.
        read_stats: Counts files that are not UTF-8, and columns that are not read.
    """
    with _opened_table(file, name, sides[0].code if sides else text_field, language, read_stats) as table:
        if not table.columns:
            return
        if table.separator != table.likely:
            sign = NAMES.get(table.separator, repr(table.separator))
            log.info("%s: columns are separated by %s", name, sign)
        rows: Iterator[tuple[Place, Sequence[str | bool | None] | Fault]] = iter(table.rows())
        fields = [text_field]
        if sides:
            fields = table_columns(name, table.columns, sides)
        if fields:
            numbers = _columns(name, table, fields, read_stats)
        else:
            numbers = {side.code: number for number, side in enumerate(sides)}
            log.info(
                "%s: its first row names no columns; they are taken for %s, in the order of `pairs`",
                name,
                " and ".join(numbers),
            )
            rows = itertools.chain([(table.first_line, table.columns)], rows)
        for number, cells in rows:
            place = f"{name}:{number}"
            if isinstance(cells, Fault):
                yield place, cells
                continue
            # A workbook's cell may be empty or a mark.
            values = {column: "" if cells[at] is None else str(cells[at]) for column, at in numbers.items()}
            if (fault := not_utf_8(values.values())) is not None:
                yield place, fault
            else:
                yield place, values


def _columns(
    name: str, table: SeparatedFile | Workbook, fields: Sequence[str], read_stats: ReadStats
) -> dict[str, int]:
    """Return the columns to read with their numbers; `fields` are those of the text."""
    columns = table.columns
    if missing := [field for field in fields if field not in columns]:
        listed = ", ".join(map(repr, columns))
        raise DataError(
            f"{name}: no column {missing[0]!r} (clean.text_field) among {listed}; the first row must name the columns"
        )
    read = [*fields, *address_columns(columns), *(column for column in BESIDE if column in columns)]
    for column in read:
        if (count := columns.count(column)) > 1:
            raise DataError(f"{name}: {count} columns are named {column!r}; rename all but one")
    for column in columns:
        if column not in read:
            read_stats.columns_not_read[column] = 1
    return {column: columns.index(column) for column in dict.fromkeys(read)}


@contextmanager
def _opened_table(
    file: ReadableFile, name: str, column: str, language: str, read_stats: ReadStats
) -> Iterator[SeparatedFile | Workbook]:
    if name.lower().endswith(WORKBOOK):
        with open_workbook(file, name, column) as workbook:
            yield workbook
        return
    with _text(file, name, language, read_stats) as text:
        yield SeparatedFile(text, name, column)


@contextmanager
def _text(file: ReadableFile, name: str, language: str, read_stats: ReadStats) -> Iterator[Any]:
    suffix = PurePath(name.lower()).suffix
    sample = b""
    with unpacked(file, suffix) as opened:
        stream: Any = opened
        # Rows before the damage are read. A stream that is damaged says so again.
        with suppress(*DAMAGED):
            while len(sample) < SAMPLE_BYTES and (piece := stream.read1(SAMPLE_BYTES - len(sample))):
                sample += piece
        whole = sample[: sample.rfind(b"\n") + 1] or sample
        # A zero in a text is no sign of UTF-16, which has them in the first row too.
        known = whole if b"\0" in whole.partition(b"\n")[0] else whole.replace(b"\0", b"")
        decoded, codec = decode_text(known, letters=letters_of(language))
        if codec != "utf-8":
            read_stats.recoded += 1
            log.warning("%s: not UTF-8; read as %s", name, codec)
            say_lost_letters(name, decoded, codec)
        # Bytes that are not of this encoding cost the row that they are in.
        errors = "surrogateescape" if codec == "utf-8" else "replace"
        joined = io.BufferedReader(_Joined(sample, stream))
        with io.TextIOWrapper(joined, encoding=codec, errors=errors, newline="") as text:
            yield text


class _Joined(io.RawIOBase):
    """The first bytes of a stream, and the rest of it."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first = io.BytesIO(first)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return self._first.readinto(target) or int(self._rest.readinto1(target))
