"""Pages of documents that meet conditions: in the order of the corpus, or by a statistic."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from anadil.watch.data.stats_rows import Place, StatsRows
from anadil.watch.data.where import Where, floats

SIZE = 50
"""Documents of a page."""
BUDGET_S = 0.6
"""Seconds of reading for a page that is full: matches behind it are counted for so long."""
BUDGET_EMPTY_S = 5.0
"""Seconds of reading for a page that is not full."""
SHOWN = ("id", "source", "host", "reason", "duplicate_of", "words", "bytes_out")
"""Columns of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentList:
    """Documents of one page."""

    places: tuple[Place, ...]
    rows: tuple[dict[str, Any], ...]
    num_matches: int
    """Documents that meet the conditions, among those looked at."""
    num_looked_at: int
    is_complete: bool
    """Every document of the corpus, from the first of the page on, was looked at."""
    next: Place | None = None
    """Place that the next page begins at; None: this is the last one, or documents are ordered by a statistic."""


def list_documents(
    rows: StatsRows, where: Where, start: Place, *, size: int = SIZE, budget_s: float = BUDGET_S
) -> DocumentList:
    """Return the documents from a place on, in the order of the inputs.

    Columns of a list are read for the documents of the page alone. Matches behind them are counted until the time is
    over, so that the first page of a hundred million documents comes as soon as that of a thousand.
    """
    began, places, further = time.monotonic(), list[Place](), None
    num_matches = looked_at = 0
    is_complete = True
    for group in rows.groups(start):
        spent = time.monotonic() - began
        # One row group is read however slow it is, so that each page gets further.
        if looked_at and spent > (budget_s if len(places) >= size else max(budget_s, BUDGET_EMPTY_S)):
            # A page that is not full goes on behind what was looked at.
            further, is_complete = further or group.place, False
            break
        matches = np.arange(group.num_rows)
        if where.columns:
            matches = np.flatnonzero(where.mask(group.read(where.columns)))
        if group.place[:2] == start[:2]:
            matches = matches[matches >= start.row]
        room = size - len(places)
        places += [group.place._replace(row=int(row)) for row in matches[:room]]
        if len(matches) > room and further is None:
            further = group.place._replace(row=int(matches[room]))
        num_matches += len(matches)
        looked_at += group.num_rows - (start.row if group.place[:2] == start[:2] else 0)
    return DocumentList(
        places=tuple(places), rows=tuple(rows.rows(places, _shown(rows, where))), num_matches=num_matches,
        num_looked_at=looked_at, is_complete=is_complete, next=further,
    )  # fmt: skip


def extreme_documents(
    rows: StatsRows, where: Where, statistic: str, *, largest: bool, size: int = SIZE,
    budget_s: float = BUDGET_EMPTY_S,
) -> DocumentList:  # fmt: skip
    """Return the documents with the largest, or least, values of a statistic; what was not measured has none.

    Row groups whose footer says that they hold none of them are not read.
    """
    until, sign = time.monotonic() + budget_s, -1.0 if largest else 1.0
    best = np.empty(0, dtype=np.float32)
    places: list[Place] = []
    num_matches = looked_at = 0
    is_complete = True
    for group in rows.groups():
        if looked_at and time.monotonic() > until:
            is_complete = False
            break
        looked_at += group.num_rows
        edge = group.greatest(statistic, least=not largest)
        # Without conditions nothing is missed but a count.
        if len(best) == size and edge is not None and sign * edge > best[-1]:
            continue
        table = group.read((*where.columns, statistic))
        values = sign * floats(table[statistic])
        chosen = np.flatnonzero(where.mask(table) & ~np.isnan(values))
        num_matches += len(chosen)
        # A place is made for those alone that may be among the best.
        chosen = chosen[np.argsort(values[chosen], kind="stable")[:size]]
        joined = np.concatenate([best, values[chosen]])
        order = np.argsort(joined, kind="stable")[:size]
        named = [*places, *(group.place._replace(row=int(row)) for row in chosen)]
        best, places = joined[order], [named[place] for place in order]
    return DocumentList(
        places=tuple(places), rows=tuple(rows.rows(places, (*_shown(rows, where), statistic))),
        num_matches=num_matches, num_looked_at=looked_at, is_complete=is_complete,
    )  # fmt: skip


def _shown(rows: StatsRows, where: Where) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys((*SHOWN, where.statistic)) if name in rows.columns)
