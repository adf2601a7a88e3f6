"""Conditions that documents are chosen by, as the fields of a page name them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anadil.core.errors import DataError
from anadil.watch.data.stats_rows import DROPPED, KEPT, VERDICT, StatsRows

MAX_FIELD = 2_000
"""Characters of a field."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Conditions, all of which a document meets; empty ones are none."""

    reason: str = ""
    """`kept`, `dropped`, or the rule that is the reason why it is dropped."""
    fails: str = ""
    """A rule that it breaks, be it the reason or not."""
    host: str = ""
    domain: str = ""
    """Domain of the host, or one that it is below."""
    file: str = ""
    licence: str = ""
    source: str = ""
    """Part of its file and place, of its host, or its id."""
    statistic: str = ""
    """Statistic that the next two bound."""
    least: str = ""
    most: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], rows: StatsRows) -> Self:
        """Read the fields of a page."""
        where = cls(**{each.name: given.get(each.name, "").strip()[:MAX_FIELD] for each in fields(cls)})
        if where.fails and where.fails not in rows.rules:
            raise DataError(f"{where.fails[:60]}: not a rule of this corpus; take one of the list")
        if where.statistic:
            rows.checked(where.statistic)
        for bound in (where.least, where.most):
            _number(bound)
        return where

    @property
    def given(self) -> dict[str, str]:
        """Conditions that are set, as fields of an address."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name))}

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the conditions ask."""
        asked = [name for name in ("reason", "host", "file", "licence") if getattr(self, name)]
        asked += ["host"] if self.domain else []
        asked += [f"{VERDICT}{self.fails}"] if self.fails else []
        asked += ["source", "host", "id"] if self.source else []
        asked += [self.statistic] if self.statistic and (self.least or self.most) else []
        return tuple(dict.fromkeys(asked))

    def mask(self, table: pa.Table) -> Mask:
        """Return which rows of a table with `columns` meet all conditions."""
        mask = np.ones(table.num_rows, dtype=bool)
        if self.reason:
            mask &= _is_reason(table["reason"], self.reason)
        for name in ("host", "file", "licence"):
            if value := getattr(self, name):
                mask &= _bools(pc.equal(table[name], value))
        if self.domain:
            below = pc.ends_with(table["host"], pattern=f".{self.domain}")
            mask &= _bools(pc.or_(pc.equal(table["host"], self.domain), below))
        if self.fails:
            mask &= _bools(table[f"{VERDICT}{self.fails}"])
        # Ids are compared whole: part of a digest names nothing.
        if self.source:
            named = [
                pc.match_substring(table[name], self.source, ignore_case=True) for name in ("source", "host")
            ]
            mask &= _bools(pc.or_(pc.or_kleene(*named), pc.equal(table["id"], self.source)))
        if self.statistic and (self.least or self.most):
            values = floats(table[self.statistic])
            # Rows hold 32 bits: a bound is rounded as they are. A value that was not measured is in no range.
            mask &= values >= np.float32(_number(self.least, -math.inf))
            mask &= values <= np.float32(_number(self.most, math.inf))
        return mask


def floats(column: Any) -> npt.NDArray[np.float32]:
    """Return a statistic as numbers, nan where it was not measured."""
    return np.asarray(column.cast(pa.float32(), safe=False).to_numpy(), dtype=np.float32)


def is_kept(reasons: Any) -> Mask:
    """Return which documents are kept."""
    return np.asarray(reasons.is_null().to_numpy(), dtype=bool)


def _is_reason(reasons: Any, reason: str) -> Mask:
    if reason in (KEPT, DROPPED):
        stays = is_kept(reasons)
        return stays if reason == KEPT else ~stays
    return _bools(pc.equal(reasons, reason))


def _bools(column: Any) -> Mask:
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=bool)


def _number(text: str, default: float = 0.0) -> float:
    if not text:
        return default
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise DataError(f"{text[:40]}: not a number; write one such as 0.25 or 100")
    return number
