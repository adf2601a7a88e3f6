"""Files of an artifact `written`, the text of a base itself: `replay` writes them, `clean` reads them."""

from pathlib import Path
from typing import Any

from anadil.core.json_text import read_json

ABOUT = "written.json"
"""Who wrote it and how, and what was dropped."""


def part_name(number: int) -> str:
    """Name of a file of documents, which has a line of JSON with `text` for each."""
    return f"part-{number:05}.jsonl.zst"


def read_written(folder: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the files of documents, in order, and the content of `written.json`."""
    about: dict[str, Any] = read_json(folder / ABOUT)
    return tuple(str(path) for path in sorted(folder.glob("part-*.jsonl.zst"))), about
