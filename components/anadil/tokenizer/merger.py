"""State of a BPE training: all pretokens as the tokens that they are made of by now.

Pairs are merged in the order of tokenizers' trainer: the most frequent first, of equal ones the one with the lower ids.
Counts have 64 bits. Memory follows the number of different pretokens: some 20 bytes for each of their bytes.

Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1; tokenizers 0.23, models/bpe/trainer.rs.
"""

import numpy as np

from anadil.core.errors import DataError
from anadil.tokenizer.kernels import merge_kernel as kernel
from anadil.tokenizer.kernels import merge_layout as layout
from anadil.tokenizer.kernels.merge_layout import Array

GROWTH = 1.25
FULL = 0.8  # Share of a list in use, when what is forgotten has been taken out, from which on it grows
MAX_CELLS = 2**31 - 1
FIRST_PAIRS = 2**17
"""Different pairs of the beginning that there is room for at first; of bytes there are 65,536 at most."""


class Merger:
    """The state of a training: all pretokens as the tokens that they are made of by now."""

    def __init__(
        self, ids: Array, tokens: Array, starts: Array, counts: Array, *, num_ids: int, least: int
    ) -> None:
        """Lay the pretokens out and count the pairs.

        Args:
            ids: All pretokens, one after another; those of one token are skipped.
            tokens: int32: what stands in `ids` -> id of the token.
            starts: int64, one more than pretokens: where in `ids` each begins and the last one ends.
            counts: int64: how often each pretoken occurs.
            num_ids: One more than the largest id that will be.
            least: Least count of a pair that is merged, at least 1.
        """
        lengths = np.diff(starts)
        num_cells = int(lengths[lengths > 1].sum() + (lengths > 1).sum()) + 1
        if num_cells > MAX_CELLS:
            raise DataError(
                f"tokenizer: the different words of the corpus have {len(ids):,} bytes, of which training "
                "takes 2 billion; leave rare ones out with tokenizer.min_word_count"
            )
        self._least = least
        counts = counts[lengths > 1]
        self._cells = np.empty((num_cells, 2), dtype=np.int32)
        firsts = np.empty(len(counts) + 1, dtype=np.int32)
        blocks = np.zeros((num_cells >> layout.BLOCK_BITS) + 1, dtype=np.int32)
        layout.lay_out(ids, tokens, starts, self._cells, firsts, blocks)
        self._words = (firsts, blocks, counts)
        self._lengths = np.ones(num_ids, dtype=np.int32)
        self._groups = np.empty((2 * num_ids, 4), dtype=np.int64)
        self._group_of = np.full((2, num_ids), layout.NONE, dtype=np.int32)
        self._state = np.zeros(layout.STATE, dtype=np.int64)
        self._list_pairs()
        self._merge(layout.NONE)

    @property
    def pair(self) -> tuple[int, int] | None:
        """The pair that comes next; None where no pair occurs often enough."""
        entry = int(self._state[layout.CHOSEN])
        return None if entry < 0 else divmod(int(self._entries[entry, layout.PAIR]), 2**layout.RIGHT_BITS)

    def discard(self) -> None:
        """Leave the pair as it is, for good."""
        self._merge(layout.NONE)

    def merge(self, new: int) -> None:
        """Write a token that was not there before wherever the pair stands."""
        pair = self.pair
        assert pair is not None, "no pair is left to merge"
        self._lengths[new] = self._lengths[pair[0]] + self._lengths[pair[1]]
        self._merge(new)

    def _list_pairs(self) -> None:
        num, room = -1, FIRST_PAIRS
        while num < 0:
            # A quarter of the slots is used at most, so that searches stay short.
            slots = np.full(4 * room, layout.NONE, dtype=np.int32)
            pairs = np.empty((room, 4), dtype=np.int64)
            num = layout.count_pairs(self._cells, self._words, slots, pairs, 0)
            # Pairs of bytes fit at once. Pairs of a base's 128,000 tokens may not.
            room *= 4
        pairs = pairs[:num]
        size = int(pairs[:, layout.NUM].sum())
        # A merge takes one token away and lists two cells at most: soon more go than come.
        self._pool = np.empty(int(GROWTH * size) + 1, dtype=np.int32)
        self._entries = np.empty((int(GROWTH * num) + size // 16 + 1, 3), dtype=np.int64)
        self._heap = np.empty((len(self._entries), 2), dtype=np.int64)
        layout.list_pairs(self._cells, pairs, self._entries, self._pool, self._state, self._least)

    def _merge(self, new: int) -> None:
        while not kernel.merge_and_choose(
            self._cells, self._words, self._lengths, self._entries, self._pool, self._heap, self._groups,
            self._group_of, self._state, new, self._least,
        ):  # fmt: skip
            self._make_room(int(self._state[layout.ROOM]))

    def _make_room(self, num: int) -> None:
        """Room for so many more cells in the pool, and for as many pairs as may begin at them."""
        # Late in a training most entries are of forgotten pairs, so this often makes room enough.
        kernel.forget_pairs(self._cells, self._entries, self._pool, self._heap, self._state, self._least)
        size, entries = int(self._state[layout.POOL_SIZE]), int(self._state[layout.NUM_ENTRIES])
        if size + num > FULL * len(self._pool):
            self._pool = _longer(self._pool, size, num)
        num = min(num, len(self._groups)) + 1
        if entries + num > FULL * len(self._entries):
            self._entries = _longer(self._entries, entries + 1, num)
            self._heap = _longer(self._heap, int(self._state[layout.HEAP_SIZE]), len(self._entries))


def _longer(array: Array, size: int, num: int) -> Array:
    """A copy with room for `num` rows after the first `size`."""
    copy = np.empty((max(int(len(array) * GROWTH), size + num), *array.shape[1:]), dtype=array.dtype)
    copy[:size] = array[:size]
    return copy
