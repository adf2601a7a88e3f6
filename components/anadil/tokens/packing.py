"""Sequences of a token stream: documents packed side by side.

A document of n tokens gives n - 1 pairs (token, next token). Pairs, not tokens, are cut into pieces.
So every token is predicted exactly once in an epoch and no label crosses a border. Each piece counts
its positions from 0. Where the tokenizer sets BOS before every text, a piece that begins inside a
document has BOS before it, as an input alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from anadil.core.errors import DataError

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
Pieces = npt.NDArray[np.int64]
Sequences = npt.NDArray[np.int64]
"""Numbers of packed sequences."""

SMALL = 2**15 - 1
"""Lengths up to it are sorted as 16-bit numbers, which numpy does by counting."""


class Rows(Protocol):
    """Rows of an array, in memory or in files."""

    def __len__(self) -> int: ...
    def __getitem__(self, where: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The encoded training part of a corpus: `[BOS] text [end of text]`, or an end of text in place of BOS."""

    ids: Rows
    """(tokens,): all documents, one after another; read by slices."""
    starts: Rows
    """(documents + 1,): where each document begins; the last entry is the number of tokens."""
    digest: str
    """Equal digests mean equal ids."""
    bos: int | None = None
    """Id before each piece that begins inside a document; None for none."""

    @property
    def num_documents(self) -> int:
        """Documents of one epoch."""
        return len(self.starts) - 1

    def slices(self, starts: Sequence[int], stops: Sequence[int]) -> Iterable[Ids]:
        """The ids of many slices."""
        return map(self.ids.__getitem__, map(slice, starts, stops))

    def first_starts(self, num: int) -> Places:
        """Begins of up to `num` documents, and the end of the last."""
        begins: Places = self.starts[: num + 1]
        return begins

    def document_at(self, position: int) -> tuple[int, int]:
        """Number and begin of the document in which a token lies."""
        number = int(np.searchsorted(self.starts[:], position, side="right")) - 1
        return number, int(self.starts[number])


def stream_of(documents: Sequence[Ids], bos: int | None) -> TokenStream:
    """Join documents in memory, each with its prefix, into a stream."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])])
    return TokenStream(ids=np.concatenate(documents), starts=starts, digest="", bos=bos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Sequences as lists of pieces of the stream."""

    stream: TokenStream
    pieces: Rows
    """(pieces, 3): start in the stream, number of pairs, and 1 where BOS is set before it; sequence by sequence."""
    rows: Rows
    """(sequences + 1,): the first piece of each sequence."""
    length: int
    """Tokens of a sequence."""
    num_targets: int
    """Predicted tokens of one epoch."""
    num_positions: int
    """Those that are no padding."""
    blocks: Sequences
    """(blocks + 1,): first sequence of each block of documents that were packed together; the last is their number."""

    @property
    def num_sequences(self) -> int:
        """Sequences of one epoch."""
        return len(self.rows) - 1

    @property
    def waste(self) -> float:
        """Share of positions that hold padding."""
        return 1 - self.num_positions / (self.num_sequences * self.length)

    def targets_of(self, sequences: Sequences) -> int:
        """Predicted tokens of some sequences."""
        return int(self.pieces_of(sequences)[0][:, 1].sum())

    def pieces_of(self, sequences: Sequences) -> tuple[Pieces, Places, Places]:
        """Pieces of some sequences, their positions, and where each begins in the rows one after another."""
        first = self.rows[sequences]
        counts = self.rows[np.asarray(sequences) + 1] - first
        row = np.repeat(np.arange(len(counts)), counts)
        before = np.cumsum(counts) - counts
        chosen = self.pieces[first[row] + np.arange(len(row)) - before[row]]
        sizes = chosen[:, 1:].sum(axis=1)
        total = np.cumsum(sizes) - sizes
        begins = row * self.length + total - total[before[row]]
        return chosen, sizes, begins


def packed_of(stream: TokenStream, pieces: Pieces, rows: Places, length: int) -> Packed:
    """Sequences whose pieces are in memory."""
    return Packed(
        stream=stream,
        pieces=pieces,
        rows=rows,
        length=length,
        num_targets=int(pieces[:, 1].sum()),
        num_positions=int(pieces[:, 1:].sum()),
        blocks=np.array([0, len(rows) - 1]),
    )


def pack(stream: TokenStream, length: int) -> Packed:
    """Cut documents into pieces of at most `length` pairs and fit the pieces into sequences.

    Source: best fit of the longest pieces first: Ding et al. 2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830.
    """
    pieces = cut_pieces(stream, length)
    if not len(pieces):
        raise DataError("corpus: no document has two tokens; give more text")
    bins = _best_fit(pieces[:, 1:].sum(axis=1), length)
    # Stable, so that the same corpus gives the same sequences everywhere.
    order = np.argsort(bins, kind="stable")
    counts = np.bincount(bins)
    rows = np.concatenate([[0], np.cumsum(counts)])
    return packed_of(stream, pieces[order], rows, length)


def cut_pieces(stream: TokenStream, length: int) -> Pieces:
    """Start and number of pairs of every piece, and whether BOS is set before it, in the order of the stream."""
    starts, lead = stream.first_starts(stream.num_documents), int(stream.bos is not None)
    pairs = np.diff(starts) - 1
    # The first piece begins with the document's own prefix; BOS takes one position of each later piece.
    later = length - lead
    num_pieces = np.where(pairs > 0, 1 + -(-np.maximum(pairs - length, 0) // later), 0)
    document = np.repeat(np.arange(len(pairs)), num_pieces)
    first = np.cumsum(num_pieces) - num_pieces
    within = np.arange(len(document)) - first[document]
    leads = np.where(within > 0, lead, 0)
    done = within * later + leads
    num = np.minimum(length - leads, pairs[document] - done)
    return np.stack([starts[document] + done, num, leads], axis=1)


def _best_fit(sizes: Places, length: int) -> Places:
    """Find a sequence for each piece: the fullest with room for it, the longest pieces first."""
    order = np.argsort(-sizes if length > SMALL else (-sizes).astype(np.int16), kind="stable")
    bins = np.empty(len(sizes), dtype=np.int64)
    rooms = Rooms(length)
    at, counts = 0, np.bincount(sizes)
    # Pieces of one size are placed at once: the fullest sequence with room for one stays the fullest
    # for the next as long as another fits, so it takes as many as fit.
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            room = rooms.least(size)
            share = room // size
            chosen = rooms.take(room, -(-left // share))
            placed = min(left, len(chosen) * share)
            bins[order[at : at + placed]] = np.repeat(chosen, share)[:placed]
            at += placed
            left -= placed
            # The last sequence may have got less than its share.
            in_last = placed - (len(chosen) - 1) * share
            rooms.put(room - share * size, chosen[:-1])
            rooms.put(room - in_last * size, chosen[-1:])
    return bins


class Rooms:
    """Sequences by the positions that are left in them; those last put are taken first."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._by_room: dict[int, list[Places]] = {}
        self._some = 0  # bit r is set where some sequence has exactly r positions left
        self._num = 0

    def least(self, size: int) -> int:
        """The smallest room of at least `size` positions; that of a new sequence where there is none."""
        fitting = self._some >> size
        return size + (fitting & -fitting).bit_length() - 1 if fitting else self._length

    def take(self, room: int, most: int) -> Places:
        """Up to `most` sequences with this room, at least one; `most` new ones where none has it."""
        stack = self._by_room.get(room)
        if not stack:
            self._num += most
            return np.arange(self._num - most, self._num)
        top = stack.pop()
        if len(top) > most:
            stack.append(top[:-most])
            top = top[-most:]
        if not stack:
            self._some &= ~(1 << room)
        return top[::-1]

    def put(self, room: int, sequences: Places) -> None:
        """Keep sequences with this room, unless they are full or there are none."""
        if room and len(sequences):
            self._by_room.setdefault(room, []).append(sequences)
            self._some |= 1 << room
