"""Removal of equal and nearly equal documents; the same ones whatever their order.

Exact: hash of the folded text. Near: MinHash signatures cut into bands; documents that agree
in a band become one cluster, of which the best is kept.

Source: Broder 1997, "On the resemblance and containment of documents"; banding as in
Leskovec et al., "Mining of Massive Datasets", section 3.4; figures as in FineWeb, arXiv:2406.17557.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anadil.clean.minhash import Hashes, MinHash, jaccard

MAX_UNVERIFIED = 50
"""Members up to which a cluster is taken as found. In larger ones chains join what is not alike."""
MAX_KEPT_IN_BUCKET = 8
"""Kept documents of a bucket that a further one is compared with: keeps the time linear."""


class ComparedText(Protocol):
    """What a document must have."""

    @property
    def id(self) -> str:
        """Decides between equals."""
        ...

    @property
    def text(self) -> str:
        """Normalized."""
        ...


def near_duplicates(
    documents: Sequence[ComparedText], band_keys: npt.NDArray[np.uint64], minhash: MinHash
) -> set[int]:
    """Indexes of the documents to drop: all but the best of each cluster.

    The best is the longest, of equally long ones that with the smallest id.

    Args:
        documents: In any order.
        band_keys: Theirs; shape (documents, bands).
        minhash: What made the keys.
    """
    parents = list(range(len(documents)))
    for band in range(band_keys.shape[1]):
        for bucket in _buckets(band_keys[:, band]):
            first = _root(parents, bucket[0])
            for index in bucket[1:]:
                parents[_root(parents, index)] = first
    clusters: dict[int, list[int]] = defaultdict(list)
    for index in range(len(documents)):
        clusters[_root(parents, index)].append(index)
    dropped: set[int] = set()
    for members in clusters.values():
        members.sort(key=lambda index: (-len(documents[index].text), documents[index].id))
        if len(members) <= MAX_UNVERIFIED:
            dropped.update(members[1:])
        else:
            dropped.update(_verified(members, documents, band_keys, minhash))
    return dropped


def _buckets(keys: npt.NDArray[np.uint64]) -> Iterator[list[int]]:
    """Groups of two or more indexes with equal keys."""
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    starts = np.concatenate(([0], edges))
    ends = np.concatenate((edges, [len(order)]))
    for group in np.flatnonzero(ends - starts > 1):
        yield order[starts[group] : ends[group]].tolist()


def _root(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _verified(
    members: list[int], documents: Sequence[ComparedText], band_keys: npt.NDArray[np.uint64], minhash: MinHash
) -> Iterator[int]:
    """Those members, best first, that truly resemble a kept one of one of their buckets."""
    kept: dict[tuple[int, int], list[Hashes]] = defaultdict(list)
    for index in members:
        shingles = minhash.shingles(documents[index].text)
        buckets = list(enumerate(band_keys[index].tolist()))
        candidates = {id(other): other for bucket in buckets for other in kept[bucket]}
        if any(jaccard(shingles, other) >= minhash.threshold for other in candidates.values()):
            yield index
            continue
        for bucket in buckets:
            if len(kept[bucket]) < MAX_KEPT_IN_BUCKET:
                kept[bucket].append(shingles)
