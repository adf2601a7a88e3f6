"""token stream -> sequences: documents packed side by side, and the order of training.

A document of n tokens gives n - 1 pairs (token, next token). Pairs, not tokens, are cut into
pieces, so every token is predicted exactly once in an epoch and no label crosses a border.
Each piece counts its positions from 0: that is how transformers knows where one ends.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from anadil.errors import DataError
from anadil.model.loss import IGNORED
from anadil.pretrain.tokens import Places, Stream

Pieces = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Sequences as lists of pieces of the stream."""

    stream: Stream
    pieces: Pieces
    """(pieces, 2): start in the stream and number of pairs, sequence by sequence."""
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
        return 1 - self.num_targets / (self.num_sequences * self.length)

    def targets_of(self, sequences: Places) -> int:
        """Predicted tokens of some sequences."""
        return sum(int(self.pieces[self.rows[i] : self.rows[i + 1], 1].sum()) for i in sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some sequences as tensors of int64, (sequences, tokens) each."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor


def pack(stream: Stream, length: int) -> Packed:
    """Cut documents into pieces of at most `length` pairs and fit the pieces into sequences.

    A piece goes to the fullest sequence that has room for it, the longest pieces first.

    Raises:
        DataError: There is nothing to predict.

    Source: Ding et al. 2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830.
    """
    pieces = _cut(stream.starts, length)
    if not len(pieces):
        raise DataError("corpus: no document has two tokens; give more text")
    bins = _best_fit(pieces[:, 1], length)
    order = np.argsort(bins, kind="stable")
    counts = np.bincount(bins)
    rows = np.concatenate([[0], np.cumsum(counts)])
    return Packed(stream=stream, pieces=pieces[order], rows=rows, length=length)


def batch_of(packed: Packed, sequences: Places) -> Batch:
    """The tensors of some sequences; padding stands alone, at position 0, and has no label."""
    shape = (len(sequences), packed.length)
    inputs = np.zeros(shape, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    labels = np.full(shape, IGNORED, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        at = 0
        for start, num in packed.pieces[packed.rows[sequence] : packed.rows[sequence + 1]]:
            ids = packed.stream.ids[start : start + num + 1]
            inputs[row, at : at + num] = ids[:-1]
            labels[row, at : at + num] = ids[1:]
            positions[row, at : at + num] = np.arange(num)
            at += num
    return Batch(
        input_ids=torch.from_numpy(inputs),
        position_ids=torch.from_numpy(positions),
        labels=torch.from_numpy(labels),
    )


def sequences_of_step(step: int, *, batch_size: int, num_sequences: int, seed: int) -> Places:
    """Which sequences optimizer step `step` (from 0) trains on, whatever the number of processes.

    Each epoch is a permutation of its own; a step may end one and begin the next.
    """
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, within = places // num_sequences, places % num_sequences
    chosen = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        chosen[here] = _permutation(num_sequences, seed, int(epoch))[within[here]]
    return chosen


@lru_cache(maxsize=2)
def _permutation(num: int, seed: int, epoch: int) -> Places:
    return np.random.default_rng([seed, epoch]).permutation(num)


def _cut(starts: Places, length: int) -> Pieces:
    """Start and number of pairs of every piece, in the order of the stream."""
    pairs = np.diff(starts) - 1
    num_pieces = -(-pairs // length)
    document = np.repeat(np.arange(len(pairs)), num_pieces)
    first = np.cumsum(num_pieces) - num_pieces
    within = np.arange(len(document)) - first[document]
    begin = starts[document] + within * length
    num = np.minimum(length, pairs[document] - within * length)
    return np.stack([begin, num], axis=1)


def _best_fit(sizes: Places, length: int) -> Places:
    """The sequence that each piece goes to."""
    bins = np.empty(len(sizes), dtype=np.int64)
    with_room: list[list[int]] = [[] for _ in range(length + 1)]
    rooms = 0  # bit r is set where some sequence has exactly r positions left
    num_bins = 0
    for piece in np.argsort(-sizes, kind="stable"):
        size = int(sizes[piece])
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            chosen = with_room[room].pop()
            if not with_room[room]:
                rooms &= ~(1 << room)
        else:
            room, chosen = length, num_bins
            num_bins += 1
        bins[piece] = chosen
        left = room - size
        if left:
            with_room[left].append(chosen)
            rooms |= 1 << left
    return bins
