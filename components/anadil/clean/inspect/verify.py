"""Verify a corpus: every byte, every text, every count, the order."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from anadil.artifacts.artifact import Manifest
from anadil.clean.filters.judge_record import document_id
from anadil.clean.write.row_files import read_rows
from anadil.core.errors import IntegrityError
from anadil.core.format import counted
from anadil.core.json_text import read_json
from anadil.text.corpus import read_file

PARTS = ("heldout", "train")


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
    """Find faults of the documents."""
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
    """Find counts that do not add up."""
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
