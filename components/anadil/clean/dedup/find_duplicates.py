"""Find the documents of all shards that are duplicates, and of which one.

Exact: equal keys; the longest stays (`shard_output.weight_of`), of equally long ones that with the smallest id, of
equal texts the first one. Near: documents that agree in a band are one cluster, found by union-find over an array on the
disk; the same one stays. Clusters of many are verified, because chains join what is not alike.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from anadil.clean.dedup.sorted_documents import EXACT, PART_DOCUMENTS, Numbers, Signatures
from anadil.clean.kernels.minhash import Hashes, MinHash, jaccard

KEPT, DUPLICATE, NEAR_DUPLICATE, POOR = range(4)
REASONS = {DUPLICATE: "duplicate", NEAR_DUPLICATE: "near_duplicate", POOR: "quality"}
CHUNK = 1_000_000
"""Entries of an array on the disk that are read at a time."""
MAX_UNVERIFIED = 50
"""Members up to which a cluster is taken as found."""
MAX_KEPT_IN_BUCKET = 8
"""Kept documents of a bucket that a further one is compared with: keeps the time linear."""
ALONE = -1
"""Bucket of a member whose key no other has."""


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
        # `verdict`: `KEPT`, `DUPLICATE`, `NEAR_DUPLICATE`, or `POOR` for scores below the best share. `duplicate_of`: the document that stays instead of it.
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
    """Keep the chosen documents that are first of their cluster."""
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


class LargeCluster:
    """Search for members that truly resemble one that stays; its files lie in a folder until the block ends."""

    def __init__(self, members: Numbers, signatures: Signatures, minhash: MinHash, folder: Path) -> None:
        """Take the members, best first, and a folder on a disk with room for eight bytes for each of their words."""
        self._members = members
        self._signatures = signatures
        self._minhash = minhash
        self._shingles_path, self._kept_path = folder / "shingles.tmp", folder / "buckets.tmp"

    def __enter__(self) -> Self:
        self._buckets, num_buckets = self._number_buckets()
        self._write_shingles()
        shape = (num_buckets, MAX_KEPT_IN_BUCKET)
        # Positions among the members, counted from 1: a file without content is full of zeros.
        self._kept = (
            np.memmap(self._kept_path, np.uint32, "w+", shape=shape) if num_buckets else np.zeros(shape)
        )
        self._num_kept = np.zeros(num_buckets, dtype=np.uint8)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._shingles, self._kept
        for path in (self._shingles_path, self._kept_path):
            path.unlink(missing_ok=True)

    def duplicates(self) -> tuple[Numbers, Numbers]:
        """Return members that go, and for each one that stays and that it resembles.

        Documents of an earlier corpus have no text here: what agrees with one in a band counts as alike.
        """
        gone, instead = [], []
        is_held = self._signatures.is_held(self._members)
        for position in range(len(self._members)):
            buckets = self._buckets[:, position]
            buckets = buckets[buckets != ALONE]
            other = None if is_held[position] else self._alike(position, buckets, is_held)
            if other is not None:
                gone.append(self._members[position])
                instead.append(self._members[other])
                continue
            with_room = buckets[self._num_kept[buckets] < MAX_KEPT_IN_BUCKET]
            self._kept[with_room, self._num_kept[with_room]] = position + 1
            self._num_kept[with_room] += 1
        return np.array(gone, dtype=np.int64), np.array(instead, dtype=np.int64)

    def _alike(self, position: int, buckets: Numbers, is_held: Numbers) -> int | None:
        """Return the first one that stays in one of the buckets and that a member resembles."""
        entries = self._kept[buckets].ravel()
        candidates = dict.fromkeys((entries[entries > 0].astype(np.int64) - 1).tolist())
        if not candidates:
            return None
        shingles = self._shingles_of(position)
        for other in candidates:
            if is_held[other] or jaccard(shingles, self._shingles_of(other)) >= self._minhash.threshold:
                return int(other)
        return None

    def _shingles_of(self, position: int) -> Hashes:
        start, size = self._starts[position], self._sizes[position]
        shingles: Hashes = self._shingles[start : start + size]
        return shingles

    def _number_buckets(self) -> tuple[Numbers, int]:
        """Number the bucket of each member in each band; shape (bands, members), and return how many there are."""
        keys = self._signatures.column("bands", self._members)
        buckets = np.empty(keys.shape, dtype=np.int64)
        first = 0
        for band, column in enumerate(keys):
            _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
            shared = counts > 1
            numbers = np.where(shared, np.cumsum(shared) - 1 + first, ALONE)
            buckets[band] = numbers[inverse]
            first += int(shared.sum())
        return buckets, first

    def _write_shingles(self) -> None:
        self._starts = np.zeros(len(self._members), dtype=np.int64)
        self._sizes = np.zeros(len(self._members), dtype=np.int64)
        written = 0
        with self._shingles_path.open("wb") as file:
            for position in np.argsort(self._members, kind="stable").tolist():
                document = int(self._members[position])
                if document < self._signatures.num_held:
                    continue
                shingles = self._minhash.shingles(json.loads(self._signatures.line(document))["text"])
                self._starts[position], self._sizes[position] = written, len(shingles)
                written += len(shingles)
                file.write(shingles.tobytes())
        self._shingles = (
            np.memmap(self._shingles_path, np.uint64, "r") if written else np.empty(0, dtype=np.uint64)
        )
