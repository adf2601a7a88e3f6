"""Rows of JSON lines for tests."""

import json
from collections.abc import Iterable
from pathlib import Path


def write_rows(file: Path, rows: Iterable[object]) -> Path:
    """Write a JSON line for each row; return the file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file
