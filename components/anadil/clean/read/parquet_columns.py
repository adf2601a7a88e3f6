"""Which columns of a Parquet file clean reads."""

import pyarrow.parquet as pq

from anadil.clean.read.record_fields import LICENCE_KEYS, address_columns
from anadil.core.errors import DataError

BESIDE = ("source", *LICENCE_KEYS)
"""Columns that are read where there are any."""


def columns_to_read(name: str, schema: pq.ParquetSchema, text_field: str) -> list[str]:
    """The column of the text, that of the address, and others that the file has; within tables by their path.

    Args:
        name: What messages call the file.
        schema: Of the file; Parquet lets several columns have one name, of which Arrow would give the last.
        text_field: The column of the text, or the path to it, such as `document.text`.

    Raises:
        DataError: The column of the text is missing, or two of those to read have one name.
    """
    names = list(schema.to_arrow_schema().names)
    paths = [schema.column(index).path for index in range(len(schema))]
    if text_field not in names and not any(
        path == text_field or path.startswith(f"{text_field}.") for path in paths
    ):
        raise DataError(f"{name}: no column {text_field!r} (clean.text_field) among {', '.join(names)}")
    columns = [text_field, *address_columns(paths), *(column for column in BESIDE if column in names)]
    for column in columns:
        if (count := names.count(column)) > 1:
            remedy = (
                "rename them, and name the one to read in clean.text_field"
                if column == text_field
                else "rename or leave out all but one"
            )
            raise DataError(
                f"{name}: {count} columns are named {column!r}, and which to read is unknown; {remedy}"
            )
    return list(dict.fromkeys(columns))
