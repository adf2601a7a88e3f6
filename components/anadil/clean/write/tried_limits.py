"""Drops of stricter and looser limits: the table of the report, counted from the rows."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anadil.clean.write.rows import BIT_OF
from anadil.text.filter_rules import KEYS, RULES

FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Multiples of the limit in force."""
MIN_WHOLE = 20
"""Smaller limits are of means, too."""
Array = npt.NDArray[Any]


def limits_in_force(limits: Array) -> dict[str, float]:
    """Key of `clean.rules` -> limit, of those that are in force.

    Args:
        limits: Of `RULES`; nan for none.
    """
    pairs = zip(RULES, limits.tolist(), strict=True)
    return {rule.limit: limit for rule, limit in pairs if rule.limit in KEYS and limit > 0}


def tried(limit: float) -> list[float]:
    """The limits that are tried: a share is 1 at most, a number of words or characters is whole."""
    if limit <= 1:
        return [round(min(1.0, limit * factor), 4) for factor in FACTORS]
    return [round(limit * factor, 0 if limit >= MIN_WHOLE else 4) for factor in FACTORS]


def count_tried(rows: pa.Table, limits: Mapping[str, float], enforced: int) -> Counter[str]:
    """`max_foreign 2`: documents that break the third limit tried for that key, and no other enforced rule.

    `max_foreign` itself counts those that break no other enforced rule. Documents that were dropped unread are left out.

    Args:
        rows: As `rows.SCHEMA` has them.
        limits: In force.
        enforced: Bits of the rules that drop.
    """
    counts: Counter[str] = Counter()
    failed, judged = rows["failed"].to_numpy(), rows["is_judged"].to_numpy(zero_copy_only=False)
    for key in dict.fromkeys(rule.limit for rule in RULES if rule.limit in limits):
        sound = judged & ((failed & np.uint64(enforced & ~BIT_OF[KEYS[key].name])) == 0)
        counts[key] += int(sound.sum())
        for place, limit in enumerate(tried(limits[key])):
            counts[f"{key} {place}"] += int((sound & _breaks(rows, key, limit)).sum())
    return counts


def tried_json(counts: Counter[str], limits: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Key -> rule, documents that no other rule drops, and how many of them each limit would; without idle ones."""
    return {
        key: {
            "rule": KEYS[key].name,
            "in_force": limit,
            "documents": counts[key],
            "tried": [[each, counts[f"{key} {place}"]] for place, each in enumerate(tried(limit))],
        }
        for key, limit in limits.items()
        if any(counts[f"{key} {place}"] for place in range(len(FACTORS)))
    }


def _breaks(rows: pa.Table, key: str, limit: float) -> Array:
    broken = np.zeros(rows.num_rows, dtype=bool)
    # Rows hold 32 bits: a value at the limit must not exceed it by what was rounded.
    bound = np.float32(limit)
    for rule in RULES:
        if rule.limit == key:
            values = rows[rule.measure].to_numpy(zero_copy_only=False)
            broken |= values < bound if rule.is_least else values > bound
    return broken
