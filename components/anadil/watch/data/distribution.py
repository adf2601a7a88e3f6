"""Distribution of a statistic over kept and dropped documents, and what groups of documents come to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from anadil.text.domains import site_of
from anadil.watch.data.stats_rows import StatsRows
from anadil.watch.data.where import Where, floats, is_kept

BINS = 24
BUDGET_S = 2.0
TAIL = 0.001
"""Share of documents at each end that the first and the last bin take: one document of a book makes no flat picture."""
MIN_RATIO = 30.0
"""Ratio of the largest value to the median, from which on bins grow by a factor. Chosen by us."""
MAX_GROUPS = 20_000
"""Hosts and files that are counted at a time; with more the rarest are dropped, and counts of them are too low."""
GROUPS = ("domain", "host", "file", "licence", "reason")
"""Ways to count documents; all but a domain are columns."""
QUANTILES = {"least": 0.0, "1 %": 0.01, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "largest": 1.0}
NO_HOST = ""
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A histogram."""

    statistic: str
    edges: tuple[float, ...]
    """Edges of the bins, one more than there are."""
    num_kept: tuple[int, ...]
    num_dropped: tuple[int, ...]
    quantiles: tuple[tuple[str, float, float], ...]
    """(name, of kept, of dropped documents); nan where there are none."""
    num_values: int
    num_unmeasured: int
    num_rows: int
    """Documents that were read."""


def distribution(
    rows: StatsRows, statistic: str, where: Where, num_rows: int, budget_s: float = BUDGET_S
) -> Distribution:
    """Return the histogram of a statistic over documents that meet conditions."""
    columns = tuple(dict.fromkeys((statistic, "reason", *where.columns)))
    parts: list[tuple[Floats, npt.NDArray[np.bool_]]] = []
    looked_at = 0
    for group in rows.sample(num_rows, budget_s):
        table = group.read(columns)
        chosen = where.mask(table)
        parts.append((floats(table[statistic])[chosen], is_kept(table["reason"])[chosen]))
        looked_at += group.num_rows
    values, stays = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    # Statistics that a language does not have are nan for all its documents.
    measured = np.isfinite(values)
    known, of_known = values[measured], stays[measured]
    edges = _edges(known)
    halves = known[of_known], known[~of_known]
    counts = [np.histogram(np.clip(each, edges[0], edges[-1]), edges)[0].tolist() for each in halves]
    return Distribution(
        statistic=statistic, edges=tuple(edges.tolist()), num_kept=tuple(counts[0]), num_dropped=tuple(counts[1]),
        quantiles=tuple(
            (name, _quantile(halves[0], share), _quantile(halves[1], share)) for name, share in QUANTILES.items()
        ),
        num_values=len(known), num_unmeasured=int((~measured).sum()), num_rows=looked_at,
    )  # fmt: skip


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def _edges(values: Floats) -> npt.NDArray[np.float64]:
    """Return edges of bins, even ones, or ones that grow by a factor where a few values are far off."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, middle, high = (float(edge) for edge in np.quantile(values, [TAIL, 0.5, 1 - TAIL]))
    # Nearly all values are one, such as 0: the bins span what is left.
    if high <= low:
        low, high = float(values.min()), max(float(values.max()), float(values.min()) + 1e-6)
    if low >= 0 and middle > 0 and high > MIN_RATIO * middle:
        return np.geomspace(max(low, middle / 1_000), high, BINS + 1)
    return np.linspace(low, high, BINS + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Documents by domain, host, file, licence or reason."""

    names: tuple[str, ...]
    """Most documents first."""
    num_kept: tuple[int, ...]
    num_dropped: tuple[int, ...]
    num_rows: int
    num_groups: int


def group_counts(
    rows: StatsRows, by: str, where: Where, num_rows: int, *, most: int = 50, budget_s: float = BUDGET_S
) -> GroupCounts:
    """Return the documents of the largest groups that meet conditions."""
    assert by in GROUPS, by
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    column = "host" if by == "domain" else by
    columns = tuple(dict.fromkeys((column, "reason", *where.columns)))
    looked_at = 0
    for group in rows.sample(num_rows, budget_s):
        table = group.read(columns)
        chosen, stays = where.mask(table), is_kept(table["reason"])
        looked_at += group.num_rows
        # Counted by Arrow and not by Python: a row group has thousands of rows and few hosts.
        for verdict, counter in counts.items():
            tally = pc.value_counts(table[column].filter(chosen & (stays == verdict)))
            for name, number in zip(*(tally.field(side).to_pylist() for side in (0, 1)), strict=True):
                counter[site_of(name or NO_HOST) if by == "domain" else name or NO_HOST] += number
            if len(counter) > 2 * MAX_GROUPS:
                counts[verdict] = Counter(dict(counter.most_common(MAX_GROUPS)))
    total = counts[True] + counts[False]
    named = [name for name, _ in sorted(total.items(), key=lambda item: (-item[1], item[0]))[:most]]
    return GroupCounts(
        names=tuple(named), num_rows=looked_at, num_groups=len(total),
        num_kept=_of(counts[True], named), num_dropped=_of(counts[False], named),
    )  # fmt: skip


def _of(counter: Counter[str], names: Sequence[str]) -> tuple[int, ...]:
    return tuple(counter[name] for name in names)
