"""Shared end of the scripts that generate files: write them, or with `--check` list those that differ."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_or_check(files: Mapping[Path, Callable[[], str]]) -> int:
    """Write the files; with `--check` exit with 1 where one differs.

    Args:
        files: File -> what gives its text, in the order in which they depend on each other.
    """
    check = "--check" in sys.argv[1:]
    status = 0
    for path, render in files.items():
        text = render()
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(
                f"{path}: differs from its source; run python scripts/{Path(sys.argv[0]).name}",
                file=sys.stderr,
            )
            status = 1
    return status
