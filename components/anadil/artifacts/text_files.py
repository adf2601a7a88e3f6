"""Text files that a stage reads beside its data, where one bad record is an error: the one reader of them.

`clean` reads its own inputs otherwise: it counts bad records and goes on.
"""

from collections.abc import Iterator
from pathlib import Path

from anadil.artifacts.line_reader import (
    DAMAGED,
    MAX_LINE_BYTES,
    PACKED_LINES,
    PLAIN_LINES,
    TooLong,
    bounded_lines,
)
from anadil.core.errors import DataError, PreflightError
from anadil.core.format import human_bytes
from anadil.core.json_text import parse_json

LINE_SUFFIXES = (*PLAIN_LINES, *PACKED_LINES)
TEXT_SUFFIXES = (*LINE_SUFFIXES, ".txt", ".parquet")
ROWS_AT_A_TIME = 16
"""Rows of a table in memory at a time, each as long as a document may be."""


def text_suffix(uri: str) -> str:
    """The suffix that says how a file is read; empty for one of another kind."""
    return next((end for end in TEXT_SUFFIXES if uri.lower().endswith(end)), "")


def text_rows(path: Path, name: str, field: str) -> Iterator[tuple[str, object]]:
    """Rows of a file with their place in it, such as `:17`; a text file is one row.

    Args:
        path: The file.
        name: For messages; its suffix says how the file is read.
        field: Key or column of the text.

    Raises:
        DataError: A record cannot be read; with its place.
        PreflightError: Parquet is given and pyarrow is not installed.
    """
    suffix = text_suffix(name)
    try:
        if suffix == ".parquet":
            yield from table_rows(path, name, field)
        elif suffix == ".txt":
            if path.stat().st_size > MAX_LINE_BYTES:
                raise DataError(
                    f"{name}: is one document of {human_bytes(path.stat().st_size)}, longer than "
                    f"{human_bytes(MAX_LINE_BYTES)}; give its documents as .jsonl"
                )
            yield "", {field: path.read_bytes().decode("utf-8-sig")}
        else:
            yield from json_rows(path, name)
    except (UnicodeDecodeError, *DAMAGED) as error:
        raise DataError(f"{name}: is damaged or not UTF-8 ({error}); repair the file") from None


def json_rows(path: Path, name: str, remedy: str = "") -> Iterator[tuple[str, object]]:
    """Values of the lines of a file with their place in it.

    Args:
        path: The file.
        name: For messages.
        remedy: For messages; left out, to correct the line.
    """
    for number, line in enumerate(bounded_lines(path, text_suffix(name)), 1):
        if isinstance(line, TooLong):
            raise DataError(
                f"{name}:{number}: {line}; {remedy or 'write each document as a line of its own'}"
            )
        if not line.strip():
            continue
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        try:
            value = parse_json(text)
        except ValueError as error:
            raise DataError(
                f"{name}:{number}: is not JSON ({error}); {remedy or 'correct the line'}"
            ) from None
        yield f":{number}", value


def table_rows(
    path: Path, name: str, field: str | None = None, remedy: str = ""
) -> Iterator[tuple[str, object]]:
    """Rows of a Parquet file with their place in it.

    Args:
        path: The file.
        name: For messages.
        field: The column that is read; None: all of them.
        remedy: For messages; left out, to cut the row or repair the file.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from anadil.artifacts.table_rows import batch_rows, parquet_batches
    except ModuleNotFoundError:
        raise PreflightError(
            f"{name}: reading Parquet needs pyarrow; install pyarrow or give JSONL"
        ) from None
    try:
        with path.open("rb") as stream:
            if field is not None and field not in pq.read_schema(stream).names:
                raise DataError(f"{name}: has no column {field!r}; set clean.text_field")
            batches = parquet_batches(stream, name, ROWS_AT_A_TIME, None if field is None else [field])
            for number, row in enumerate((row for batch in batches for row in batch_rows(batch)), start=1):
                if isinstance(row, TooLong):
                    raise DataError(f"{name}:{number}: {row}; {remedy or 'cut it'}")
                if isinstance(row, UnicodeDecodeError):
                    raise row
                yield f":{number}", row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: is damaged Parquet ({error}); {remedy or 'repair the file'}") from None


def text_of(row: object, field: str, place: str) -> str:
    """The text of a row.

    Raises:
        DataError: It has none, one that is too long, or one that UTF-8 cannot hold.
    """
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{place}: has no text in {field!r}; set clean.text_field or correct the record")
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise DataError(f"{place}: holds half a surrogate pair, which UTF-8 cannot hold; repair it") from None
    if num_bytes > MAX_LINE_BYTES:
        raise DataError(
            f"{place}: document of {human_bytes(num_bytes)} is longer than {human_bytes(MAX_LINE_BYTES)}; cut it"
        )
    return text
