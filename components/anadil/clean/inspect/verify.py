"""Verify a corpus: every byte, every text, every count, the order."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from anadil.artifacts.artifact import Manifest
from anadil.clean.filters.judge_record import document_id
from anadil.clean.write.accounts import KEPT_NAME
from anadil.clean.write.row_files import read_rows
from anadil.core.errors import IntegrityError
from anadil.core.format import counted
from anadil.core.json_text import read_json
from anadil.text.corpus import read_file

PARTS = ("heldout", "train")
MAX_EXAMPLES = 5
COLUMNS = ["source", "bytes_in", "id", "reason"]
Table = npt.NDArray[Any]
Json = dict[str, Any]


def verify_corpus(corpus: Path, manifest: Manifest) -> dict[str, str]:
    """Check a local corpus, the digests of whose files were compared with the manifest before; list the checks."""
    wrong = [*_wrong_texts(corpus, manifest), *_wrong_counts(corpus, manifest)]
    if wrong:
        raise IntegrityError(f"{corpus}: " + "; ".join(wrong) + "; make the corpus again")
    documents = sum(manifest.records.get(part, 0) for part in PARTS)
    return {
        "files": f"{len(manifest.files):,}, each with the digest of the manifest",
        "documents": f"{documents:,}, each with the id of its text, in order, none twice in a file",
        "counts": "in = kept + dropped by reason, in stats.json and in the rows of stats/",
    }


def _wrong_texts(corpus: Path, manifest: Manifest) -> Iterator[str]:
    counts: Counter[str] = Counter()
    is_pairs = "pairs" in read_json(corpus / "stats.json")
    for name in sorted(name for name in manifest.files if name.split("/")[0] in PARTS):
        last, last_text, digest = "", "", hashlib.sha256()
        for document in read_file(corpus / name):
            encoded = document.text.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
            counts[name.split("/")[0]] += 1
            if is_pairs and document.id == last:
                # The second direction has the id of the first, so that both are left out together.
                if document.text.split("\n") != last_text.split("\n")[::-1]:
                    yield f"{name}: the second direction of {document.id} is not that of the first"
                continue
            if document.id != document_id(encoded):
                yield f"{name}: {document.id} is not the id of its text"
            if document.id <= last:
                yield f"{name}: {document.id} comes after {last}"
            last, last_text = document.id, document.text
        if manifest.contents.get(name, digest.hexdigest()) != digest.hexdigest():
            yield f"{name}: its texts are not those of the manifest"
    for part in PARTS:
        if counts[part] != manifest.records.get(part, 0):
            yield f"{part}: {counted(counts[part], 'document')}, {manifest.records.get(part, 0):,} in the manifest"


def _wrong_counts(corpus: Path, manifest: Manifest) -> Iterator[str]:
    stats = read_json(corpus / "stats.json")
    if stats["in"] != stats["kept"] + sum(stats["dropped"].values()):
        yield "stats.json: documents in are not those kept and dropped"
    if stats["records"] != manifest.records:
        yield f"stats.json: records are {stats['records']}, {manifest.records} in the manifest"
    counts: Counter[str] = Counter()
    for batch in read_rows(corpus, ["reason"]):
        counts.update(reason or "kept" for reason in batch["reason"].to_pylist())
    expected = Counter({"kept": stats["kept"], **stats["dropped"]})
    for name in sorted(counts.keys() | expected.keys()):
        if counts[name] != expected[name]:
            yield f"stats/: {counts[name]:,} rows are {name}, {expected[name]:,} in stats.json"


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
