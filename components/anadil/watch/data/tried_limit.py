"""Documents that another limit would keep or drop, before anything is run.

A rule drops a document by limits of statistics, and every statistic of every document is in `stats/`. So another limit
is tried on numbers alone. Duplicates are known for the documents that passed the rules: what a limit lets in may be a
duplicate of another document, and only a run of clean can tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from anadil.core.errors import DataError
from anadil.text.filter_rules import KEYS, MODES, RULES, Rule
from anadil.watch.data.stats_rows import VERDICT, Place, RowGroup, StatsRows
from anadil.watch.data.where import Mask, floats, is_kept

EXAMPLES = 12
"""Documents that are named on each side."""
BUDGET_S = 3.0
Json = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Side:
    """Documents that a limit lets in, or drops."""

    documents: int = 0
    words: int = 0
    num_bytes: int = 0
    """Bytes of their text."""
    examples: list[Place] = field(default_factory=list)

    def add(self, group: RowGroup, table: Any, chosen: Mask) -> None:
        """Count rows of a group."""
        places = np.flatnonzero(chosen)
        self.documents += len(places)
        self.words += int(np.nan_to_num(floats(table["words"])[places]).sum())
        self.num_bytes += int(np.nan_to_num(floats(table["bytes_out"])[places]).sum(dtype=np.float64))
        room = max(0, EXAMPLES - len(self.examples))
        self.examples += [group.place._replace(row=int(row)) for row in places[:room]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLimit:
    """A limit that is tried."""

    key: str
    """Key of `clean.rules`."""
    rule: Rule
    in_force: float | None
    """None: nothing is judged by it."""
    limit: float
    is_enforced: bool
    """False: the rule is only counted, so that the corpus has what it would drop."""
    num_kept: int
    """Documents that are kept now."""
    num_passing: int
    """Documents that pass all rules now, duplicates among them."""
    gained: Side
    """Documents that pass with this limit and do not now, before duplicates are dropped."""
    lost: Side
    """Documents that are kept now and would not pass."""
    num_rows: int
    """Documents that were read."""


def tried_limit(
    rows: StatsRows, stats: Json, modes: Mapping[str, str], key: str, limit: float, budget_s: float = BUDGET_S
) -> TriedLimit:
    """Return the documents that another limit would keep.

    Args:
        rows: Rows of the corpus.
        stats: Its `stats.json`.
        modes: `clean.modes` of its recipe.
        key: Key of `clean.rules`.
        limit: The limit that is tried.
        budget_s: Seconds after which no further row group is read.
    """
    if key not in KEYS:
        raise DataError(f"{key[:60]}: not a key of clean.rules; take one of the list")
    limits = dict(stats.get("limits") or {}) if isinstance(stats.get("limits"), dict) else {}
    records = [each for each in RULES if each.name == KEYS[key].name and each.measure in rows.columns]
    others = [
        name for name in rows.rules if name != KEYS[key].name and modes.get(name, MODES.get(name)) != "report"
    ]
    num_kept = num_passing = looked_at = 0
    gained, lost = Side(), Side()
    # Several limits may be one rule: all of its statistics are needed, to judge it anew.
    columns = ["reason", "duplicate_of", "words", "bytes_out", *(each.measure for each in records)]
    for group in rows.sample(int(stats.get("in") or 0), budget_s):
        table = group.read(columns)
        now, breaks = is_kept(table["reason"]), _breaks(table, records, limits | {key: limit})
        is_reason = pc.fill_null(pc.equal(table["reason"], KEYS[key].name), False).to_numpy()
        # Only documents that pass every rule can be lost, so that no other verdict is read for them.
        lost.add(group, table, now & breaks)
        candidates = is_reason & ~breaks
        if candidates.any():
            # Verdicts of the other rules are read where a document may come in.
            gained.add(group, table, candidates & ~_fails(group, others))
        num_kept += int(now.sum())
        num_passing += int(now.sum()) + table.num_rows - table["duplicate_of"].null_count
        looked_at += group.num_rows
    return TriedLimit(
        key=key, rule=KEYS[key], in_force=_number(limits.get(key)), limit=limit, num_kept=num_kept, num_passing=num_passing,
        is_enforced=modes.get(KEYS[key].name, KEYS[key].mode) == "enforce", gained=gained, lost=lost, num_rows=looked_at,
    )  # fmt: skip


def _breaks(table: Any, records: Sequence[Rule], limits: Mapping[str, Any]) -> Mask:
    """Return which documents a rule drops by some limits."""
    broken = np.zeros(table.num_rows, dtype=bool)
    for rule in records:
        bound = _number(limits.get(rule.limit, rule.default if rule.set_in == "nowhere" else None))
        if bound is not None:
            values = floats(table[rule.measure])
            # Rows hold 32 bits: a value at the limit must not exceed it by what was rounded.
            broken |= values < np.float32(bound) if rule.is_least else values > np.float32(bound)
    return broken


def _fails(group: RowGroup, rules: Sequence[str]) -> Mask:
    columns = [f"{VERDICT}{name}" for name in rules]
    table = group.read(columns)
    verdicts = [table[name].fill_null(False).to_numpy() for name in columns]
    return np.asarray(np.logical_or.reduce(verdicts), dtype=bool)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
