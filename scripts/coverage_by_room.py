"""Share of lines and branches that the tests reach, a row for each room: `make coverage`, or with a file of `coverage json`."""

import json
import sys
from collections import Counter
from pathlib import Path

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def by_room(files: dict[str, dict[str, dict[str, int]]]) -> dict[str, Counter[str]]:
    """Room -> the counts of its files; the room is the folder below the package."""
    rooms: dict[str, Counter[str]] = {}
    for name, file in files.items():
        if Path(name).is_absolute():  # a test's copy of the sources, or a module that it wrote
            continue
        parts = Path(name).parts
        package = next(number for number, part in enumerate(parts) if part.startswith("anadil"))
        room = parts[package + 1] if len(parts) > package + 2 else parts[package]
        counts = {key: file["summary"].get(key, 0) for key in COUNTS}
        rooms.setdefault(room, Counter()).update(counts)
    return rooms


def share(part: int, whole: int) -> str:
    """In percent."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def main() -> None:
    """Print the table."""
    files = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["files"]
    print("| room | lines | % | branches | % |\n|---|---|---|---|---|")
    rooms = by_room(files)
    for name, each in [*sorted(rooms.items()), ("all", sum(rooms.values(), Counter()))]:
        lines, reached, branches, taken = (each[key] for key in COUNTS)
        print(f"| {name} | {lines} | {share(reached, lines)} | {branches} | {share(taken, branches)} |")


if __name__ == "__main__":
    main()
