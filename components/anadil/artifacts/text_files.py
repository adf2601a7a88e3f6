"""Reader of text files that a stage reads beside its data. One bad record is an error.

`clean` has a reader of its own: it counts bad records and goes on.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from anadil.artifacts import line_reader
from anadil.artifacts.json_values import refuse_no_lines
from anadil.artifacts.separated_file import SEPARATORS, Fault, Place, SeparatedFile, not_utf_8
from anadil.artifacts.workbook import WORKBOOK, Workbook, open_workbook
from anadil.core.errors import DataError, PreflightError
from anadil.core.format import MIB, human_bytes
from anadil.core.install import install
from anadil.core.json_text import field_of, parse_json
from anadil.text.code_pages import best_code_page, nearly_utf_8, say_lost_letters
from anadil.text.letters import UNKNOWN, Letters

log = logging.getLogger(__name__)

LINE_SUFFIXES = (*line_reader.PLAIN_LINES, *line_reader.PACKED_LINES)
TEXT_SUFFIXES = (*LINE_SUFFIXES, ".txt", ".parquet")
ROWS_AT_A_TIME = 16
"""Rows of a table in memory at a time, each as long as a document may be."""


def text_suffix(uri: str) -> str:
    """Return the suffix that says how a file is read; empty for one of another kind."""
    return next((end for end in TEXT_SUFFIXES if uri.lower().endswith(end)), "")


def text_rows(path: Path, name: str, field: str) -> Iterator[tuple[str, object]]:
    """Yield the rows of a file with their place, such as `a.jsonl:17`; a text file is one row.

    The suffix of `name` says how the file is read, `field` which key or column holds the text.
    """
    suffix = text_suffix(name)
    try:
        if suffix == ".txt":
            if path.stat().st_size > line_reader.MAX_LINE_BYTES:
                raise DataError(
                    f"{name}: is one document of {human_bytes(path.stat().st_size)}, longer than "
                    f"{human_bytes(line_reader.MAX_LINE_BYTES)}; give its documents as .jsonl"
                )
            yield name, {field: path.read_bytes().decode("utf-8-sig")}
            return
        rows = table_rows(path, name, field) if suffix == ".parquet" else json_rows(path, name)
        for number, row in rows:
            yield f"{name}:{number}", row
    except (UnicodeDecodeError, *line_reader.DAMAGED) as error:
        raise DataError(f"{name}: is damaged or not UTF-8 ({error}); repair the file") from None


def json_rows(path: Path, name: str, remedy: str = "") -> Iterator[tuple[int, object]]:
    """Yield the values of the lines of a file with the number of their line; blank lines have none."""
    for number, line in enumerate(line_reader.bounded_lines(path, name), start=1):
        if number == 1:
            refuse_no_lines(name, line)
        if isinstance(line, line_reader.TooLong):
            raise DataError(f"{name}:{number}: {line}; {remedy or 'write each record as a line of its own'}")
        if not line.strip():
            continue
        try:
            # Some editors begin a file with a byte order mark.
            value = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"), no_twins=True)
        except ValueError as error:
            raise DataError(
                f"{name}:{number}: not a JSON line ({error}); {remedy or 'correct or remove the line'}"
            ) from None
        yield number, value


def table_rows(
    path: Path, name: str, field: str | None = None, remedy: str = "", *, at_a_time: int = ROWS_AT_A_TIME
) -> Iterator[tuple[int, object]]:
    """Yield the rows of a Parquet or Arrow file, numbered from 1.

    Args:
        name: For messages; one that ends in `.arrow` is Arrow's.
        field: The column of a Parquet file that is read; None: all of them.
        remedy: For messages; left out, to repair the row or the file.
        at_a_time: Rows in memory at a time, fewer where they are long.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from anadil.artifacts.table_rows import arrow_batches, batch_rows, parquet_batches
    except ModuleNotFoundError:
        raise PreflightError(
            f"{name}: reading Parquet and Arrow needs pyarrow; {install('clean')}, or give .jsonl"
        ) from None
    try:
        with pa.memory_map(str(path)) as stream:
            if name.lower().endswith(".arrow"):
                batches = arrow_batches(stream, name)
            elif field is not None and not {field, field.partition(".")[0]} & {*pq.read_schema(stream).names}:
                raise DataError(f"{name}: has no column {field!r}; set clean.text_field")
            else:
                batches = parquet_batches(stream, name, at_a_time, None if field is None else [field])
            for number, row in enumerate((row for batch in batches for row in batch_rows(batch)), start=1):
                if isinstance(row, line_reader.TooLong | UnicodeDecodeError):
                    raise DataError(
                        f"{name}:{number}: {row}; {remedy or 'cut or repair the row, or leave it out'}"
                    )
                yield number, row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: is a damaged table ({error}); {remedy or 'repair the file'}") from None


def text_of(row: object, field: str, place: str) -> str:
    """The text of a row."""
    text = None
    with suppress(KeyError):
        text = field_of(row, field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{place}: has no text in {field!r}; set clean.text_field or correct the record")
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise DataError(f"{place}: holds half a surrogate pair, which UTF-8 cannot hold; repair it") from None
    if num_bytes > line_reader.MAX_LINE_BYTES:
        raise DataError(
            f"{place}: document of {human_bytes(num_bytes)} is longer than {human_bytes(line_reader.MAX_LINE_BYTES)}; cut it"
        )
    return text


SEPARATED = tuple(SEPARATORS)
TEXT_TABLES = (*SEPARATED, WORKBOOK)
BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
SAVE = 'save it as UTF-8; Excel calls that "CSV UTF-8"'
SAMPLE_BYTES = MIB
"""First bytes of a file, by which its encoding is known."""

Row = tuple[Place, dict[str, object] | Fault]


def separated_rows(path: Path, name: str, letters: Letters = UNKNOWN) -> Iterator[Row]:
    """Yield each row with the number of its first line; a cell without text is None.

    Without `letters` of the language, which tell code pages apart, a file must be UTF-8 or UTF-16.
    """
    with _table(path, name, letters) as table:
        columns = _columns(table.columns, f"{name}:{table.first_line}")
        for number, cells in table.rows():
            if isinstance(cells, Fault):
                yield number, cells
            elif (fault := not_utf_8(each for each in cells if isinstance(each, str))) is not None:
                yield number, fault
            else:
                yield (
                    number,
                    {key: None if cell == "" else cell for key, cell in zip(columns, cells, strict=False)},
                )


@contextmanager
def _table(path: Path, name: str, letters: Letters) -> Iterator[SeparatedFile | Workbook]:
    if name.lower().endswith(WORKBOOK):
        with open_workbook(path, name) as workbook:
            yield workbook
        return
    encoding = _encoding(path, name, letters)
    # Bytes that are not UTF-8 cost the row that they are in.
    errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
    with path.open(encoding=encoding, errors=errors, newline="") as text:
        yield SeparatedFile(text, name, "")


def _encoding(path: Path, name: str, letters: Letters) -> str:
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
    if mark := BYTE_ORDER_MARKS.get(sample[:2]):
        return mark
    whole = sample[: sample.rfind(b"\n") + 1] or sample
    if nearly_utf_8(whole) is not None:
        return "utf-8-sig"
    page = best_code_page(whole, (), letters)
    if page is None:
        raise DataError(f"{name}: is not UTF-8, nor in a code page of the language; {SAVE}")
    log.warning("%s: not UTF-8; read as %s", name, page)
    say_lost_letters(name, whole.decode(page, "replace"), page)
    return page


def _columns(names: Sequence[str], place: str) -> list[str]:
    named = [name or f"column {number}" for number, name in enumerate(names, 1)]
    twice = next((name for name, count in Counter(named).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{place}: two columns are called {twice!r}; rename one")
    return named
