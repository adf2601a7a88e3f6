"""A corpus of any size as `clean` leaves it, for pages that look at rows: numbers are drawn, not measured."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts import artifact
from anadil.text.filter_rules import MODES, RULES

FILE_ROWS, GROUP_ROWS = 65_536, 8_192
STATISTICS = ("words", "chars", "foreign", "short_lines", "top_2gram", "duplicate_5grams")
RULE_NAMES = ("mixed", "short", "short_lines", "top_ngram", "duplicate_ngrams")
LIMITS = {
    "max_foreign": 0.3, "min_words": 50, "max_short_lines": None, "max_top_ngram": 0.2, "max_duplicate_ngrams": 0.3,
}  # fmt: skip


def make_watched_corpus(
    folder: Path, num_rows: int, *, statistics: Sequence[str] = STATISTICS, seed: int = 7
) -> Path:
    """Write `stats/` and `stats.json`; every rule with a limit is enforced, and one in 20 of the rest is a duplicate."""
    draw = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    (folder / "stats").mkdir(parents=True)
    for number, first in enumerate(range(0, num_rows, FILE_ROWS)):
        size = min(FILE_ROWS, num_rows - first)
        columns = {name: draw.random(size, dtype=np.float32) * 0.5 for name in statistics}
        columns["words"] = np.floor(draw.lognormal(5.5, 1.2, size)).astype(np.float32)
        table = _table(columns, first, draw)
        for reason in table["reason"].value_counts().to_pylist():
            name = reason["values"] or "kept"
            counts[name] = counts.get(name, 0) + reason["counts"]
        path = folder / f"stats/part-{number:05}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=GROUP_ROWS)
    _write_stats(folder, num_rows, counts)
    return folder


def _table(columns: Mapping[str, Any], first: int, draw: np.random.Generator) -> pa.Table:
    size = len(columns["words"])
    fails = {name: _fails(name, columns) for name in RULE_NAMES}
    reason = np.full(size, None, dtype=object)
    duplicate = draw.random(size) < 0.05
    reason[duplicate] = "near_duplicate"
    for name in reversed(RULE_NAMES):
        reason[fails[name]] = name
    numbers = range(first, first + size)
    hosts = (draw.zipf(1.6, size) % 1_000).tolist()
    return pa.table({
        "id": [f"{number:032x}" for number in numbers],
        "file": [f"crawl-{number % 3}.jsonl" for number in numbers],
        "source": [f"crawl-{number % 3}.jsonl:{number}" for number in numbers],
        "host": [f"xeber{host}.az" for host in hosts],
        "licence": [""] * size,
        "bytes_in": pa.array((columns["words"] * 9).astype(np.uint32)),
        "bytes_out": pa.array((columns["words"] * 7).astype(np.uint32)),
        "reason": pa.array(reason.tolist(), pa.string()),
        "duplicate_of": pa.array(["0" * 32 if each == "near_duplicate" else None for each in reason], pa.string()),
        **columns,
        **{f"fails_{name}": fails[name] for name in RULE_NAMES},
    })  # fmt: skip


def _fails(name: str, columns: Mapping[str, Any]) -> Any:
    broken = np.zeros(len(columns["words"]), dtype=bool)
    for rule in RULES:
        limit = LIMITS.get(rule.limit)
        if rule.name == name and limit is not None and rule.measure in columns:
            values = columns[rule.measure]
            broken |= values < np.float32(limit) if rule.is_least else values > np.float32(limit)
    return broken


def _write_stats(folder: Path, num_rows: int, counts: Mapping[str, int]) -> None:
    dropped = {name: number for name, number in sorted(counts.items()) if name != "kept"}
    stats = {
        "language": "az", "in": num_rows, "kept": counts.get("kept", 0), "dropped": dropped, "limits": LIMITS,
        "records": {"train": counts.get("kept", 0), "heldout": 0}, "words_out": 1_000_000, "bytes_out": 7_000_000,
        "hosts": {"xeber1.az": {"in": num_rows // 2, "kept": num_rows // 4, "words": 10, "bytes": 70}},
        "by_source": {"crawl-0.jsonl": {"in": num_rows, "kept": counts.get("kept", 0), "bad": 0, "dropped": dropped, "words": 1, "bytes": 1}},
        "rules": {name: {"mode": MODES[name], "marginal": number, "unique": number, "chosen": number, "bytes": 1} for name, number in dropped.items() if name in MODES},
        "lengths": [], "limits_tried": {},
    }  # fmt: skip
    (folder / "stats.json").write_text(json.dumps(stats), encoding="utf-8")


def seal_corpus(folder: Path) -> Path:
    """Write the manifest, as a run does."""
    artifact.seal(folder, kind="corpus", origin={"stage": "clean"}, recipe={"clean": {"modes": {}}})
    return folder
