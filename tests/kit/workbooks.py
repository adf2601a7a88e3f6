"""Excel workbooks for tests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openpyxl


def write_workbook(
    path: Path, sheets: Mapping[str, Any], change: Callable[[Any], object] = lambda book: None
) -> Path:
    """Write sheets of rows; `change` gets the workbook before it is saved."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for number, row in enumerate(rows, 1):
            for column, value in enumerate(row, 1):
                sheet.cell(number, column, value)
    change(book)
    book.save(path)
    return path
