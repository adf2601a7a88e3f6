"""A table as lines for a terminal."""

from collections.abc import Sequence

from anadil.core.format import visible


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> list[str]:
    """Lines of a table; the last column takes what it needs."""
    table = [tuple(columns), *(tuple(map(visible, row)) for row in rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
