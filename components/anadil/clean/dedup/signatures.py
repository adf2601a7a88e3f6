"""Columns of all shards as one table: a document is its number, shards in order and rows in order."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from anadil.clean.dedup.sorted_documents import KEY_ROWS, KEYS, MASK, Numbers, SortedDocuments

PART_DOCUMENTS = 2_000_000
"""Compared at a time; some 100 bytes of memory for each."""

Chosen = Callable[[Numbers], Numbers]
"""Numbers of documents -> True for each that is meant."""


class Signatures:
    """Keys that dedup compares, read from the disk in parts.

    Numbers of documents follow the order of the inputs, so that what they decide does not depend on the shards.
    """

    def __init__(self, folders: Sequence[Path], held: Sequence[Path] = ()) -> None:
        """Open the columns of shards, behind those of an earlier corpus's index."""
        self.shards = [SortedDocuments(folder) for folder in (*held, *folders)]
        self.starts = np.cumsum([0, *(shard.num_rows for shard in self.shards)])
        """Number of the first document of each shard, and of all."""
        self.num_documents = int(self.starts[-1])
        self._num_held_shards = len(held)
        self.num_held = int(self.starts[len(held)])
        """Documents of the earlier corpus; they have the lowest numbers."""
        self.num_parts = max(1, -(-self.num_documents // PART_DOCUMENTS))

    def column(self, name: str, documents: Numbers) -> Numbers:
        """Return the values of some documents, in their order."""
        order = np.argsort(documents, kind="stable")
        ordered = documents[order]
        edges = np.searchsorted(ordered, self.starts)
        values = [
            shard.column(name)[..., ordered[first:end] - start]
            for shard, start, first, end in zip(self.shards, self.starts, edges, edges[1:], strict=False)
            if first < end
        ]
        if not values:
            return np.empty(0, dtype=np.uint64)
        joined = np.concatenate(values, axis=-1)
        gathered = np.empty_like(joined)
        gathered[..., order] = joined
        return gathered

    def equal_keys(self, kind: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield documents ordered by a kind of key, and these keys, in parts; equal keys are in one part."""
        for low, high in self._key_ranges():
            keys, documents = [], []
            for shard, start in zip(self.shards, self.starts, strict=False):
                column = shard.column(KEYS)[kind]
                first = np.searchsorted(column, np.uint64(low))
                end = len(column) if high > MASK else np.searchsorted(column, np.uint64(high))
                keys.append(np.array(column[first:end]))
                documents.append(shard.column(KEY_ROWS)[kind, first:end].astype(np.int64) + start)
            part_keys, part_documents = np.concatenate(keys), np.concatenate(documents)
            # Stable, so that of equal keys the smaller number comes first.
            order = np.argsort(part_keys, kind="stable")
            yield part_documents[order], part_keys[order]

    def by_id(self) -> Iterator[Numbers]:
        """Yield documents ordered by id, in parts."""
        for low, high in self._key_ranges():
            documents, ids = [], []
            for shard, start in zip(self.shards, self.starts, strict=False):
                first, end = shard.first_row_from(low), shard.first_row_from(high)
                documents.append(np.arange(first, end) + start)
                ids.append([shard.column(name)[first:end] for name in ("id_low", "id_high")])
            low_half, high_half = (np.concatenate(column) for column in zip(*ids, strict=True))
            yield np.concatenate(documents)[np.lexsort((low_half, high_half))]

    def lowest_ids(self, is_chosen: Chosen, most: int) -> list[int]:
        """Return the chosen documents with the smallest ids, in their order."""
        lowest: list[int] = []
        for documents in self.by_id():
            lowest += documents[is_chosen(documents)][: most - len(lowest)].tolist()
            if len(lowest) == most:
                break
        return lowest

    def shard_of(self, document: int) -> int:
        """Return the number of the shard that a new document is in."""
        return self._place_of(document) - self._num_held_shards

    def id_of(self, document: int) -> str:
        """Return the id of one document."""
        high, low = (int(self.column(name, np.array([document]))[0]) for name in ("id_high", "id_low"))
        return id_of(high, low)

    def is_held(self, documents: Numbers) -> Numbers:
        """Return True for each document of the earlier corpus."""
        held: Numbers = documents < self.num_held
        return held

    def line(self, document: int) -> bytes:
        """Read the line of one document."""
        place = self._place_of(document)
        return self.shards[place].line(document - int(self.starts[place]))

    def _place_of(self, document: int) -> int:
        return int(np.searchsorted(self.starts, document, side="right")) - 1

    def _key_ranges(self) -> Iterator[tuple[int, int]]:
        # Hashes of 64 bits are spread evenly.
        step = -(-(MASK + 1) // self.num_parts)
        for part in range(self.num_parts):
            yield part * step, (part + 1) * step


def id_of(high: int, low: int) -> str:
    """Join the halves of an id."""
    return f"{int(high):016x}{int(low):016x}"
