"""Which columns of a Parquet file clean reads."""

from collections.abc import Sequence

from anadil.core.errors import DataError


def columns_to_read(name: str, known: Sequence[str], text_field: str, beside: Sequence[str]) -> list[str]:
    """The column of the text, and those beside it that the file has.

    Args:
        name: What messages call the file.
        known: Its columns; Parquet lets several have one name, of which Arrow would give the last.
        text_field: The column of the text.
        beside: Others that are read where there are any.

    Raises:
        DataError: The column of the text is missing, or two of those to read have one name.
    """
    if text_field not in known:
        raise DataError(f"{name}: no column {text_field!r} (clean.text_field) among {', '.join(known)}")
    columns = [column for column in (text_field, *beside) if column in known]
    for column in columns:
        if (count := known.count(column)) > 1:
            remedy = (
                "rename them, and name the one to read in clean.text_field"
                if column == text_field
                else "rename or leave out all but one"
            )
            raise DataError(
                f"{name}: {count} columns are named {column!r}, and which to read is unknown; {remedy}"
            )
    return columns
