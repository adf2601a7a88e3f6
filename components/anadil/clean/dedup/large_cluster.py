"""Verify a cluster of many documents, in which chains join what is not alike: compare each with those that stay.

A million documents may be in one cluster, so what they are compared by lies on the disk: shingles, read from
their texts in the order in which these lie there, and the documents that stay of each bucket.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from anadil.clean.dedup.signatures import Signatures
from anadil.clean.dedup.sorted_documents import Numbers
from anadil.clean.kernels.minhash import Hashes, MinHash, jaccard

MAX_UNVERIFIED = 50
"""Members up to which a cluster is taken as found."""
MAX_KEPT_IN_BUCKET = 8
"""Kept documents of a bucket that a further one is compared with: keeps the time linear."""
ALONE = -1
"""Bucket of a member whose key no other has."""


class LargeCluster:
    """Search for members that truly resemble one that stays; its files lie in a folder until the block ends."""

    def __init__(self, members: Numbers, signatures: Signatures, minhash: MinHash, folder: Path) -> None:
        """Take the members, best first, and a folder on a disk with room for eight bytes for each of their words."""
        self._members = members
        self._signatures = signatures
        self._minhash = minhash
        self._shingles_path, self._kept_path = folder / "shingles.tmp", folder / "buckets.tmp"

    def __enter__(self) -> Self:
        """Write shingles and buckets."""
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
        """Remove the files."""
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
