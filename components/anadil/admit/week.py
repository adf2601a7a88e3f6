"""The documents that came with one corpus, as far as their statistics tell of them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anadil.clean.dedup.find_duplicates import REASONS as DUPLICATES
from anadil.clean.filters.judge_record import BLOCKED, CONTAMINATED, LANGUAGE, PAGE_LIMITS
from anadil.clean.kernels.columns import EXTERNAL, STATISTICS
from anadil.core.json_text import read_json
from anadil.overlap.alike import REASONS as REASONS_OF_OVERLAP

MAX_ROWS = 100_000
"""Rows that are kept of a week, evenly chosen: memory stays below 30 MB. A choice; chance is 1 % of a share of 10 %."""
KINDS = {
    "language": (LANGUAGE, "mixed", "script", "spelling"),
    "duplicates": tuple(DUPLICATES.values()),
    "contaminated": (CONTAMINATED,),
    "unusable": ("empty", "short"),
}
"""Check -> reasons that `clean` drops documents for."""
OF_OVERLAP = dict(zip(REASONS_OF_OVERLAP, (CONTAMINATED, *DUPLICATES.values()), strict=True))
"""Reason of `overlap` -> that of `clean` which says the same."""
JUDGED = tuple(name for name in STATISTICS if name not in EXTERNAL)
NO_STYLE = [BLOCKED, PAGE_LIMITS, *(reason for each in KINDS.values() for reason in each)]
"""Reasons that say nothing of how a text is written."""
COLUMNS = ("id", "file", "source", "host", "bytes_out", "reason", "personal_data", *JUDGED)
DIGITS = re.compile(r"\d+")

Floats = npt.NDArray[np.float32]
NOTHING = np.empty(0, np.float32)
Texts = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """New documents of a source."""

    documents: int
    """All that came."""
    per_file: float
    """Documents of an input file, of those whose rows are read."""
    bad: float
    """Records that could not be read, for each document."""
    reasons: Texts
    """Reason why the document of each row was dropped; None for one that stays."""
    personal_data: tuple[float, float]
    """Documents with personal data, and those that were looked at."""
    places: dict[str, Texts]
    """Kind of place (`host`, `origin`, `files`) -> that of each row; empty where it has none."""
    statistics: dict[str, Floats]
    """Name -> value of each row; nan where it was not measured."""
    heldout: dict[str, int]
    """Held-out documents that were looked at, and those of which the new text holds much (`contaminated`)."""

    @property
    def rows(self) -> int:
        """Documents whose rows are kept."""
        return len(self.reasons)

    @property
    def is_kept(self) -> npt.NDArray[np.bool_]:
        """True for rows of documents that stay."""
        return np.array([reason is None for reason in self.reasons], dtype=np.bool_)

    def by_place(self, kind: str, *, only_kept: bool) -> Counter[str]:
        """Count documents, or those that stay, by their place of a kind."""
        # A place that `clean` drops everything of teaches nothing.
        places = self.places[kind][self.is_kept] if only_kept else self.places[kind]
        return Counter(places.tolist())

    def judged(self, statistic: str) -> Floats:
        """Return a statistic of the documents that say how text is written: those that stay, or that a rule of style drops."""
        values = self.statistics.get(statistic, NOTHING)
        is_text = ~np.isin(self.reasons.astype(str), NO_STYLE)
        return values[is_text & ~np.isnan(values)] if len(values) else values

    def share(self, kind: str) -> tuple[float, float]:
        """Count the rows that a check of `KINDS` asks for, and those that it looks at."""
        count, total = float(np.isin(self.reasons.astype(str), KINDS[kind]).sum()), float(self.rows)
        if kind == "unusable":
            # A record without text is as useless whether it can be read or not.
            return count + self.bad * self.rows, total + self.bad * self.rows
        return count, total


def read_week(
    folder: Path,
    row_files: Sequence[str],
    names: frozenset[str] = frozenset(),
    excluded: Mapping[str, str] | None = None,
) -> Week:
    """Read the rows of the documents of a corpus.

    Args:
        folder: Local corpus, with its `stats.json` and these files.
        row_files: Files of rows, in order.
        names: Input files whose documents are read; empty: all.
        excluded: Id -> reason of documents that `overlap` leaves out.
    """
    stats = read_json(folder / "stats.json")
    table = pa.concat_tables([_rows(folder / name, names) for name in row_files], promote_options="default")
    # Rows stand in the order of the files, and a part from the front would be of some files only.
    num_rows = table.num_rows
    per_file = num_rows / max(1, pc.count_distinct(table["file"]).as_py())
    table = table.take(np.arange(0, num_rows, max(1, -(-num_rows // MAX_ROWS))))
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    return Week(
        documents=num_rows if names else int(stats["in"]),
        per_file=per_file,
        bad=stats["bad"] / max(1, stats["in"]),
        reasons=_final_reasons(columns["reason"], columns["id"], excluded or {}),
        personal_data=(float((columns["personal_data"] > 0).sum()), float(table.num_rows)),
        places={
            "host": columns["host"],
            "origin": np.array([each.partition(" ")[2] for each in columns["source"]], dtype=object),
            "files": np.array([_family(name) for name in columns["file"]], dtype=object),
        },
        statistics={name: columns[name].astype(np.float32) for name in JUDGED if name in columns},
        heldout=stats["heldout"],
    )


def _rows(path: Path, names: frozenset[str]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        # A corpus of another release may lack a statistic; the others still tell.
        known = [name for name in COLUMNS if name in file.schema_arrow.names]
        table = file.read(columns=known)
    return table.filter(pc.is_in(table["file"], pa.array(sorted(names), pa.string()))) if names else table


def _final_reasons(reasons: Texts, ids: Texts, excluded: Mapping[str, str]) -> Texts:
    """Return why each document is no training text: `overlap` leaves out some that stay in their own corpus."""
    left_out = [
        OF_OVERLAP.get(excluded.get(name, "")) if reason is None else reason
        for reason, name in zip(reasons, ids, strict=True)
    ]
    return np.array(left_out, dtype=object)


def _family(file: str) -> str:
    """Return a file's name without numbers, which is the same each week: `news-2026-11-26.jsonl`."""
    return DIGITS.sub("#", file.rpartition("/")[2])
