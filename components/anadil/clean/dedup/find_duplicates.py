"""Find the documents of all shards that are duplicates, and of which one.

Exact: equal keys; the longest stays (`shard_output.weight_of`), of equally long ones that with the smallest id, of
equal texts the first one. Near: documents that agree in a band are one cluster, found by union-find over an array on the
disk; the same one stays. Clusters of many are verified, because chains join what is not alike.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anadil.clean.dedup.large_cluster import MAX_UNVERIFIED, LargeCluster
from anadil.clean.dedup.signatures import PART_DOCUMENTS, Signatures
from anadil.clean.dedup.sorted_documents import EXACT, Numbers
from anadil.clean.kernels.minhash import MinHash

KEPT, DUPLICATE, NEAR_DUPLICATE = 0, 1, 2
REASONS = {DUPLICATE: "duplicate", NEAR_DUPLICATE: "near_duplicate"}
CHUNK = 1_000_000
"""Entries of an array on the disk that are read at a time."""


class Verdicts:
    """Verdict of dedup on each document, on the disk: arrays by the number of the document."""

    def __init__(self, folder: Path, num_documents: int | None = None) -> None:
        """Open the verdicts of a folder, or start over for so many documents."""
        self.folder = folder
        kinds = {"verdict": np.uint8, "duplicate_of": np.int64, "cluster_size": np.uint32}
        self.verdict, self.duplicate_of, self.cluster_size = (
            np.load(folder / f"{name}.npy", mmap_mode="r")
            if num_documents is None
            else np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, (num_documents,))
            for name, kind in kinds.items()
        )
        # `verdict`: `KEPT`, `DUPLICATE` or `NEAR_DUPLICATE`. `duplicate_of`: the document that stays instead of it.
        # `cluster_size`: documents that are alike, with itself; 0 for one that is alone.

    def count(self, verdict: int) -> int:
        """Count the documents with a verdict."""
        return sum(
            int((self.verdict[at : at + CHUNK] == verdict).sum()) for at in range(0, len(self.verdict), CHUNK)
        )

    def has(self, verdict: int, documents: Numbers) -> Numbers:
        """Return True for each document with a verdict."""
        mask: Numbers = self.verdict[documents] == verdict
        return mask

    def is_kept(self, documents: Numbers) -> Numbers:
        """Return True for each document that stays."""
        return self.has(KEPT, documents)

    def drop(self, documents: Numbers, duplicate_of: Numbers, verdict: int) -> None:
        """Note that documents are duplicates of others, one for each."""
        self.verdict[documents] = verdict
        self.duplicate_of[documents] = duplicate_of


def find_duplicates(
    signatures: Signatures, minhash: MinHash, folder: Path, *, only_exact: bool = False
) -> Verdicts:
    """Fill a folder with the verdicts of all documents; with `only_exact`, near duplicates stay."""
    verdicts = Verdicts(folder, signatures.num_documents)
    _find_exact(signatures, verdicts)
    # Exact ones go in any case: a document is known by the hash of its text.
    if only_exact:
        return verdicts
    parents = np.lib.format.open_memmap(folder / "parents.npy", "w+", np.int64, (signatures.num_documents,))
    for start in range(0, len(parents), CHUNK):
        parents[start : start + CHUNK] = np.arange(start, min(start + CHUNK, len(parents)))
    for band in range(minhash.bands):
        for documents, keys in signatures.equal_keys(1 + band):
            stays = verdicts.verdict[documents] == KEPT
            unite(parents, *_edges(documents[stays], keys[stays]))
    for part in _cluster_members(parents):
        _judge_clusters(part, parents, signatures, minhash, verdicts)
    del parents
    (folder / "parents.npy").unlink()
    return verdicts


def unite(parents: Numbers, first: Numbers, second: Numbers) -> None:
    """Join the clusters of pairs of documents; the root of a cluster is its smallest number."""
    while len(first):
        first, second = roots(parents, first), roots(parents, second)
        differ = first != second
        first, second = first[differ], second[differ]
        low, high = np.minimum(first, second), np.maximum(first, second)
        # A root may get several parents at once: it takes the smallest, and the others are tried again.
        order = np.lexsort((low, high))
        low, high = low[order], high[order]
        is_first = _is_first(high)
        parents[high[is_first]] = low[is_first]


def roots(parents: Numbers, documents: Numbers) -> Numbers:
    """Find the roots of documents; the way of each becomes one step."""
    root = np.asarray(parents[documents])
    while not np.array_equal(further := np.asarray(parents[root]), root):
        root = further
    parents[documents] = root
    return root


def _find_exact(signatures: Signatures, verdicts: Verdicts) -> None:
    for ordered, all_keys in signatures.equal_keys(EXACT):
        is_first = _is_first(all_keys)
        # Keys that come twice or more.
        same = ~(is_first & np.append(is_first[1:], True))
        documents, keys = ordered[same], all_keys[same]
        low = signatures.column("exact_low", documents)
        _, cluster = np.unique(np.stack((keys, low)), axis=1, return_inverse=True)
        order, firsts = _best_first(cluster.reshape(-1), documents, signatures)
        gone = ~signatures.is_held(documents[order])
        _drop_clusters(documents[order], firsts, verdicts, DUPLICATE, gone)


def _judge_clusters(
    documents: Numbers, parents: Numbers, signatures: Signatures, minhash: MinHash, verdicts: Verdicts
) -> None:
    order, firsts = _best_first(roots(parents, documents), documents, signatures)
    documents = documents[order]
    sizes = np.diff(np.append(firsts, len(documents)))
    small = np.repeat(sizes <= MAX_UNVERIFIED, sizes) & ~signatures.is_held(documents)
    _drop_clusters(documents, firsts, verdicts, NEAR_DUPLICATE, small)
    for first, size in zip(firsts[sizes > MAX_UNVERIFIED], sizes[sizes > MAX_UNVERIFIED], strict=True):
        members = documents[first : first + size]
        verdicts.cluster_size[members] = size
        with LargeCluster(members, signatures, minhash, verdicts.folder) as cluster:
            verdicts.drop(*cluster.duplicates(), NEAR_DUPLICATE)


def _best_first(cluster: Numbers, documents: Numbers, signatures: Signatures) -> tuple[Numbers, Numbers]:
    """Order documents by cluster, the best of each first; return the order, and the places where clusters begin."""
    weight = signatures.column("weight", documents).astype(np.int64)
    high, low = (signatures.column(name, documents) for name in ("id_high", "id_low"))
    is_new = ~signatures.is_held(documents)
    order = np.lexsort((documents, low, high, -weight, is_new, cluster))
    return order, np.flatnonzero(_is_first(cluster[order]))


def _drop_clusters(
    documents: Numbers, firsts: Numbers, verdicts: Verdicts, verdict: int, chosen: Numbers
) -> None:
    """Keep those of the chosen documents that are the first of their cluster."""
    sizes = np.diff(np.append(firsts, len(documents)))
    best = np.repeat(documents[firsts], sizes)
    verdicts.cluster_size[documents[chosen]] = np.repeat(sizes, sizes)[chosen]
    gone = chosen & (documents != best)
    verdicts.drop(documents[gone], best[gone], verdict)


def _is_first(keys: Numbers) -> Numbers:
    """Return True for each ordered key that differs from the one before."""
    is_first = np.ones(len(keys), dtype=bool)
    is_first[1:] = keys[1:] != keys[:-1]
    return is_first


def _edges(documents: Numbers, keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return pairs that connect documents with equal keys: the first one of a key with each other."""
    is_first = _is_first(keys)
    first_of = np.flatnonzero(is_first)[np.cumsum(is_first) - 1] if len(keys) else np.empty(0, dtype=np.int64)
    return documents[first_of][~is_first], documents[~is_first]


def _cluster_members(parents: Numbers) -> Iterator[Numbers]:
    """Yield documents that are in clusters, whole clusters at a time."""
    blocks = np.zeros(-(-len(parents) // CHUNK) * 16 + 1, dtype=np.int64)
    width = max(1, CHUNK // 16)
    for start in range(0, len(parents), CHUNK):
        documents = np.arange(start, min(start + CHUNK, len(parents)))
        parent = roots(parents, documents)
        np.add.at(blocks, parent[parent != documents] // width, 1)
    bounds = [0]
    total = 0
    for block, count in enumerate(blocks.tolist()):
        if total and total + count > PART_DOCUMENTS:
            bounds.append(block * width)
            total = 0
        total += count
    for low, high in zip(bounds, [*bounds[1:], len(parents)], strict=True):
        members = []
        for start in range(0, len(parents), CHUNK):
            parent = np.asarray(parents[start : start + CHUNK])
            documents = np.arange(start, start + len(parent))
            joined = (parent != documents) & (parent >= low) & (parent < high)
            members += [documents[joined], parent[joined]]
        if members:
            yield np.unique(np.concatenate(members))
