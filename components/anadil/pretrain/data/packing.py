"""Sequences of a token stream: documents packed side by side, and the order of training.

A document of n tokens gives n - 1 pairs (token, next token). Pairs, not tokens, are cut into pieces.
So every token is predicted exactly once in an epoch and no label crosses a border. Each piece counts
its positions from 0. Where the tokenizer sets BOS before every text, a piece that begins inside a
document has BOS before it, as an input alone.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from anadil.artifacts import artifact, sealed_dir
from anadil.core.errors import DataError
from anadil.model.loss import IGNORED
from anadil.pretrain.data.tokens import Places, TokenStream

Pieces = npt.NDArray[np.int64]
Sequences = npt.NDArray[np.int64]
"""Numbers of packed sequences."""

SMALL = 2**15 - 1
"""Lengths up to it are sorted as 16-bit numbers, which numpy does by counting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Sequences as lists of pieces of the stream."""

    stream: TokenStream
    pieces: Pieces
    """(pieces, 3): start in the stream, number of pairs, and 1 where BOS is set before it; sequence by sequence."""
    rows: Places
    """(sequences + 1,): the first piece of each sequence."""
    length: int
    """Tokens of a sequence."""

    @property
    def num_sequences(self) -> int:
        """Sequences of one epoch."""
        return len(self.rows) - 1

    @property
    def num_targets(self) -> int:
        """Predicted tokens of one epoch."""
        return int(self.pieces[:, 1].sum())

    @property
    def waste(self) -> float:
        """Share of positions that hold padding."""
        return 1 - int(self.pieces[:, 1:].sum()) / (self.num_sequences * self.length)

    def targets_of(self, sequences: Sequences) -> int:
        """Predicted tokens of some sequences."""
        return int(_pieces_of(self, sequences)[0][:, 1].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some sequences as tensors of int64, (sequences, tokens) each, and where documents begin in them."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    """Counted from 0 in each piece, and in the padding that ends a row."""
    labels: torch.Tensor
    borders: torch.Tensor
    """(pieces + 1,) of int32, on the host: where each piece or padding begins in the rows one after
    another, then the number of all tokens; a row's begin is always among them."""

    def pinned(self) -> "Batch":
        """The same in page-locked memory, from which a GPU copies while it computes."""
        return self._with(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """The same on a device, borders apart; from page-locked memory without waiting for the copy."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        return Batch(
            input_ids=change(self.input_ids),
            position_ids=change(self.position_ids),
            labels=change(self.labels),
            borders=self.borders,
        )


def packed_stream(stream: TokenStream, length: int, work: Path, *, write: bool) -> Packed:
    """Pack a stream into sequences of `length` once, in `work`, and read the result in all processes of a node.

    `write` is True in one process of each node, which packs before the others read.

    Raises:
        DataError: There is nothing to predict, or nobody packed.
    """
    origin = {"tokens": stream.digest, "length": str(length), "bos": str(stream.bos)}
    folder = work / f"sequences-{artifact.origin_key(origin)}"
    # Every byte is compared: a kill may have left a damaged file.
    if write and not sealed_dir.verify(folder, origin, once_a_boot=True):
        packed = pack(stream, length)
        with sealed_dir.create(folder, origin, socket.gethostname()) as draft:
            np.save(draft / "pieces.npy", packed.pieces, allow_pickle=False)
            np.save(draft / "rows.npy", packed.rows, allow_pickle=False)
    if not sealed_dir.exists(folder):
        raise DataError(f"{folder}: not there; each node's first process makes it in its work directory")
    pieces, rows = (
        np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
        for name in ("pieces", "rows")
    )
    return Packed(stream=stream, pieces=pieces, rows=rows, length=length)


def pack(stream: TokenStream, length: int) -> Packed:
    """Cut documents into pieces of at most `length` pairs and fit the pieces into sequences.

    Raises:
        DataError: There is nothing to predict.

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
    return Packed(stream=stream, pieces=pieces[order], rows=rows, length=length)


def batch_of(packed: Packed, sequences: Sequences, *, rows: int = 0) -> Batch:
    """Make the tensors of some sequences, and of padding up to `rows`; padding has no labels."""
    rows, length = max(rows, len(sequences)), packed.length
    chosen, sizes, begins = _pieces_of(packed, sequences)
    inputs = np.zeros(rows * length, dtype=np.int64)
    labels = np.full(rows * length, IGNORED, dtype=np.int64)
    positions = np.arange(rows * length)
    inputs[begins[chosen[:, 2] == 1]] = packed.stream.bos or 0
    firsts = begins + chosen[:, 2]
    for at, start, num in zip(firsts.tolist(), chosen[:, 0].tolist(), chosen[:, 1].tolist(), strict=True):
        ids = packed.stream.ids[start : start + num + 1]
        inputs[at : at + num] = ids[:-1]
        labels[at : at + num] = ids[1:]
    ends = begins + sizes
    borders = np.unique(np.concatenate([begins, ends, np.arange(rows + 1) * length]))
    positions -= np.repeat(borders[:-1], np.diff(borders))
    shape = (rows, length)
    return Batch(
        input_ids=torch.from_numpy(inputs.reshape(shape)),
        position_ids=torch.from_numpy(positions.reshape(shape)),
        labels=torch.from_numpy(labels.reshape(shape)),
        borders=torch.from_numpy(borders.astype(np.int32)),
    )


def _pieces_of(packed: Packed, sequences: Sequences) -> tuple[Pieces, Places, Places]:
    """Pieces of some sequences, their positions, and where each begins in the rows one after another."""
    first = packed.rows[sequences]
    counts = packed.rows[np.asarray(sequences) + 1] - first
    row = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    chosen = packed.pieces[first[row] + np.arange(len(row)) - before[row]]
    sizes = chosen[:, 1:].sum(axis=1)
    total = np.cumsum(sizes) - sizes
    begins = row * packed.length + total - total[before[row]]
    return chosen, sizes, begins


def sequences_of_step(step: int, *, batch_size: int, num_sequences: int, seed: int) -> Sequences:
    """Choose the sequences of optimizer step `step` (from 0); a step may end one epoch and begin the next."""
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, within = places // num_sequences, places % num_sequences
    chosen = np.empty(batch_size, dtype=np.int64)
    # The order of an epoch depends on its number alone, so a resume needs no state.
    for epoch in np.unique(epochs):
        here = epochs == epoch
        chosen[here] = _permutation(num_sequences, seed, int(epoch))[within[here]]
    return chosen


@lru_cache(maxsize=2)
def _permutation(num: int, seed: int, epoch: int) -> Places:
    return np.random.default_rng([seed, epoch]).permutation(num)


def cut_pieces(stream: TokenStream, length: int) -> Pieces:
    """Start and number of pairs of every piece, and whether BOS is set before it, in the order of the stream."""
    starts, lead = stream.starts, int(stream.bos is not None)
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
