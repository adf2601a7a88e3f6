"""Differences of two corpora that were made of the same or of similar inputs."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from anadil.clean.write.accounts import KEPT_NAME
from anadil.clean.write.row_files import read_rows

MAX_EXAMPLES = 5
"""Documents that are named for each change."""
COLUMNS = ["source", "bytes_in", "id", "reason"]
Table = npt.NDArray[Any]
Json = dict[str, Any]


def compare_corpora(first: Path, second: Path) -> Json:
    """Compare the counts of two corpora, and find documents with another verdict.

    A document is known by its source and its size as it came: line 17 of `part-0.jsonl` is another one next week.
    Some 17 bytes of memory for each document.
    """
    reasons: dict[str, int] = {}
    old, new = (_table(corpus, reasons) for corpus in (first, second))
    common, in_old, in_new = np.intersect1d(old["document"], new["document"], return_indices=True)
    before, after = old[in_old], new[in_new]
    differs = before["reason"] != after["reason"]
    pairs = Counter(zip(before["reason"][differs].tolist(), after["reason"][differs].tolist(), strict=True))
    names = list(reasons)
    examples = {
        pair: common[differs & (before["reason"] == pair[0]) & (after["reason"] == pair[1])][:MAX_EXAMPLES]
        for pair in pairs
    }
    sources = _sources(second, np.concatenate([*examples.values(), np.empty(0, np.uint64)]))
    changes = [
        {
            "before": names[pair[0]], "after": names[pair[1]], "documents": count,
            "examples": sorted(sources[int(key)] for key in examples[pair]),
        }
        for pair, count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    ]  # fmt: skip
    kept_number = reasons.get(KEPT_NAME, -1)
    both_kept = (before["reason"] == kept_number) & (after["reason"] == kept_number)
    return {
        "counts": _counts(first, second),
        "changed": changes,
        "other_text": int((both_kept & (before["id"] != after["id"])).sum()),
        "only_in_first": len(old) - len(common),
        "only_in_second": len(new) - len(common),
    }


def _counts(first: Path, second: Path) -> Json:
    tables = [json.loads((corpus / "stats.json").read_text(encoding="utf-8")) for corpus in (first, second)]
    rows = {key: [table[key] for table in tables] for key in ("in", "kept", "bytes_out", "words_out")}
    rows |= {
        part: [table.get("records", {}).get(part, 0) for table in tables] for part in ("train", "heldout")
    }
    reasons = sorted({reason for table in tables for reason in table["dropped"]})
    return rows | {f"dropped {each}": [table["dropped"].get(each, 0) for table in tables] for each in reasons}


def _table(corpus: Path, reasons: dict[str, int]) -> Table:
    """Read the hashes of document and id, and the number of the reason; each document once."""
    kinds = [("document", np.uint64), ("id", np.uint64), ("reason", np.uint8)]
    parts = [np.empty(0, dtype=kinds)]
    for batch in read_rows(corpus, COLUMNS):
        columns = (batch[name].to_pylist() for name in COLUMNS)
        rows = [
            (_key(source, size), int(number[:16], 16), reasons.setdefault(reason or KEPT_NAME, len(reasons)))
            for source, size, number, reason in zip(*columns, strict=True)
        ]
        parts.append(np.array(rows, dtype=kinds))
    table = np.concatenate(parts)
    return table[np.unique(table["document"], return_index=True)[1]]


def _sources(corpus: Path, documents: Table) -> dict[int, str]:
    keys = set(documents.tolist())
    numbers: dict[int, str] = {}
    for batch in read_rows(corpus, COLUMNS[:2]) if keys else ():
        named = zip(*(batch[name].to_pylist() for name in COLUMNS[:2]), strict=True)
        numbers |= {key: source for source, size in named if (key := _key(source, size)) in keys}
    return numbers


def _key(source: str, bytes_in: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{source} {bytes_in}".encode())
