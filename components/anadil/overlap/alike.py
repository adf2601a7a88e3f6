"""Find the documents of a source that are alike to one of another source, by the keys that `clean` removes duplicates by.

The table is read a kind of key at a time, in its order. Two documents are compared directly: no chain joins what is not
alike, as it would in a cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from anadil.clean.dedup.find_duplicates import CHUNK
from anadil.clean.dedup.sorted_documents import EXACT, Numbers
from anadil.overlap.source_corpora import SourceTable

NONE = -1
REASONS = ("heldout", "duplicate", "near_duplicate")
HELDOUT, DUPLICATE, NEAR_DUPLICATE = range(3)
"""Places among them: of two reasons the first is the one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """For each document of a source and each reason, the document that it gives way to, or `NONE`; on the disk."""

    first: int
    """Number of the source's first document."""
    others: Numbers
    """Shape (reasons, documents)."""

    @classmethod
    def create(cls, path: Path, numbers: range) -> Self:
        """Begin without a match."""
        others = np.lib.format.open_memmap(path, "w+", np.int64, (len(REASONS), len(numbers)))
        for start in range(0, len(numbers), CHUNK):
            others[:, start : start + CHUNK] = NONE
        return cls(first=numbers.start, others=others)

    def note(self, reason: int, documents: Numbers, others: Numbers) -> None:
        """Note a match of each of some documents; the smallest number counts."""
        rows = documents - self.first
        before = self.others[reason, rows]
        self.others[reason, rows] = np.where(before == NONE, others, np.minimum(before, others))

    def of(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """Return the reason of each document, or `NONE`, and the document that it gives way to."""
        rows = documents - self.first
        reasons = np.full(len(rows), NONE)
        others = np.full(len(rows), NONE)
        for reason in reversed(range(len(REASONS))):
            column = self.others[reason, rows]
            reasons, others = (
                np.where(column != NONE, reason, reasons),
                np.where(column != NONE, column, others),
            )
        return reasons, others


def find_alike(table: SourceTable, current: int, bands: int, matches: Matches) -> None:
    """Note the documents of a source that are alike to one of a source before it, or to any other's earlier or held-out one."""
    for documents, keys in _equal_texts(table):
        _note(table, current, DUPLICATE, documents, keys, matches)
    for band in range(bands):
        for documents, keys in table.signatures.equal_keys(1 + band):
            _note(table, current, NEAR_DUPLICATE, documents, keys[None], matches)


def _equal_texts(table: SourceTable) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield documents with keys of their text, 128 bits each, equal ones together."""
    for documents, high in table.signatures.equal_keys(EXACT):
        low = table.signatures.column("exact_low", documents)
        order = np.lexsort((documents, low, high))
        yield documents[order], np.stack((high, low))[:, order]
    # A language without spaces has other keys: of equal texts the ids are equal in all.
    for documents in table.signatures.by_id():
        halves = [table.signatures.column(name, documents) for name in ("id_high", "id_low")]
        order = np.lexsort((documents, halves[1], halves[0]))
        yield documents[order], np.stack(halves)[:, order]


def _note(
    table: SourceTable, current: int, reason: int, documents: Numbers, keys: Numbers, matches: Matches
) -> None:
    """Note matches among documents, ordered by key and number; shape of the keys (parts, documents)."""
    is_first = np.ones(len(documents), dtype=bool)
    is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    shared = ~(is_first & np.append(is_first[1:], True))
    documents, is_first = documents[shared], is_first[shared]
    group = np.cumsum(is_first) - 1
    numbers = table.numbers(current)
    is_own = (documents >= numbers.start) & (documents < numbers.stop)
    is_earlier = table.is_earlier(documents)
    # Numbers follow the order of sources: the lowest of a key is of the source that comes first. Earlier text stays before it.
    is_before, is_other = documents < numbers.start, ~is_own
    nobody = table.signatures.num_documents

    def lowest(chosen: Numbers) -> Numbers:
        others = np.full(int(is_first.sum()), nobody, dtype=np.int64)
        np.minimum.at(others, group[chosen], documents[chosen])
        return others

    others = lowest(is_earlier & is_other)
    of_new = np.where(others < nobody, others, lowest(~is_earlier & is_before))
    for rows, others in (
        (is_own & is_earlier, lowest(is_earlier & is_before)),
        (is_own & ~is_earlier, of_new),
    ):
        _note_groups(reason, others, others < nobody, documents[rows], group[rows], matches)
    held = lowest(is_other & np.isin(documents, table.heldout))
    _note_groups(HELDOUT, held, held < nobody, documents[is_own], group[is_own], matches)


def _note_groups(
    reason: int, others: Numbers, valid: Numbers, documents: Numbers, group: Numbers, matches: Matches
) -> None:
    chosen = valid[group]
    matches.note(reason, documents[chosen], others[group[chosen]])
