"""Reader of text files that a stage reads beside its data. One bad record is an error.

`clean` has a reader of its own: it counts bad records and goes on.
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
    """Return the suffix that says how a file is read; empty for one of another kind."""
    return next((end for end in TEXT_SUFFIXES if uri.lower().endswith(end)), "")


def text_rows(path: Path, name: str, field: str) -> Iterator[tuple[str, object]]:
    """Yield the rows of a file with their place, such as `a.jsonl:17`; a text file is one row.

    The suffix of `name` says how the file is read, `field` which key or column holds the text.
    """
    suffix = text_suffix(name)
    try:
        if suffix == ".txt":
            if path.stat().st_size > MAX_LINE_BYTES:
                raise DataError(
                    f"{name}: is one document of {human_bytes(path.stat().st_size)}, longer than "
                    f"{human_bytes(MAX_LINE_BYTES)}; give its documents as .jsonl"
                )
            yield name, {field: path.read_bytes().decode("utf-8-sig")}
            return
        rows = table_rows(path, name, field) if suffix == ".parquet" else json_rows(path, name)
        for number, row in rows:
            yield f"{name}:{number}", row
    except (UnicodeDecodeError, *DAMAGED) as error:
        raise DataError(f"{name}: is damaged or not UTF-8 ({error}); repair the file") from None


def json_rows(path: Path, name: str, remedy: str = "") -> Iterator[tuple[int, object]]:
    """Yield the values of the lines of a file with the number of their line; blank lines have none."""
    for number, line in enumerate(bounded_lines(path, name), start=1):
        if isinstance(line, TooLong):
            raise DataError(f"{name}:{number}: {line}; {remedy or 'write each record as a line of its own'}")
        if not line.strip():
            continue
        try:
            # Some editors begin a file with a byte order mark.
            value = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
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
        path: The file.
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
            f"{name}: reading Parquet and Arrow needs pyarrow; install pyarrow or give .jsonl"
        ) from None
    try:
        with pa.memory_map(str(path)) as stream:
            if name.lower().endswith(".arrow"):
                batches = arrow_batches(stream, name)
            elif field is not None and field not in pq.read_schema(stream).names:
                raise DataError(f"{name}: has no column {field!r}; set clean.text_field")
            else:
                batches = parquet_batches(stream, name, at_a_time, None if field is None else [field])
            for number, row in enumerate((row for batch in batches for row in batch_rows(batch)), start=1):
                if isinstance(row, TooLong | UnicodeDecodeError):
                    raise DataError(
                        f"{name}:{number}: {row}; {remedy or 'cut or repair the row, or leave it out'}"
                    )
                yield number, row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name}: is a damaged table ({error}); {remedy or 'repair the file'}") from None


def text_of(row: object, field: str, place: str) -> str:
    """The text of a row."""
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
