"""Byte-level BPE from a word-count table: a new vocabulary (`replace`) or more merges for the base's (`extend`).

An extension appends the merges that training would add next, were it continued on the corpus. Every new token can
then be reached, and text without new tokens is encoded as before. Two other ways fail: most merges of a second BPE
would be out of reach, and `add_tokens` breaks decoding, because a byte-level decoder reads letters such as u-umlaut
as byte symbols.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from anadil.core.errors import DataError
from anadil.core.progress import progress
from anadil.text.cut_patterns import ALPHABET, SYMBOLS, Merge
from anadil.text.pieces import tokenize_by
from anadil.tokenizer.kernels import merge_kernel as kernel
from anadil.tokenizer.kernels import merge_kernel as layout
from anadil.tokenizer.kernels.merge_kernel import Array
from anadil.tokenizer.word_counts import WordCounts, as_table

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
        """Lay the pretokens out and count the pairs."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedVocabulary:
    """An ordered vocabulary that begins with the 256 bytes. Its start is the smaller vocabulary of the same corpus."""

    merges: list[Merge]

    def cut(self, num_tokens: int) -> tuple[dict[str, int], list[Merge]]:
        """Vocabulary (token -> id) and merges of at most `num_tokens` tokens, the bytes always among them."""
        merges = self.merges[: max(0, num_tokens - len(ALPHABET))]
        tokens = [*ALPHABET, *(left + right for left, right in merges)]
        return {token: index for index, token in enumerate(tokens)}, merges


def train_vocabulary(
    counts: WordCounts | Mapping[str, int], num_tokens: int, min_frequency: int
) -> TrainedVocabulary:
    """Train on a word-count table, with the merges of tokenizers' trainer; every smaller vocabulary is a `cut`."""
    table = as_table(counts)
    # All 256 bytes, also those that the corpus lacks: later texts may hold them.
    ids = {symbol: number for number, symbol in enumerate(ALPHABET)}
    tokens = np.array([ids[symbol] for symbol in SYMBOLS], dtype=np.int32)
    # Each new token is two or more bytes of some word, so a size beyond all words needs no room.
    num_ids = min(max(num_tokens, len(ALPHABET)), len(ALPHABET) + len(table.text))
    merger = Merger(table.text, tokens, table.starts, table.counts, num_ids=num_ids, least=min_frequency)
    return TrainedVocabulary(merges=merges_of(merger, dict(enumerate(ALPHABET)), num_tokens - len(ALPHABET)))


def continue_merges(
    tokenizer: Tokenizer, counts: WordCounts | Mapping[str, int], num_tokens: int, min_frequency: int,
    is_banned: Callable[[str], bool] | None = None,
) -> list[Merge]:  # fmt: skip
    """Continue the base's BPE on a corpus; merge k makes new token k, and a smaller extension begins a larger one.

    Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1, begun at the base's vocabulary.
    """
    symbols = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    table = as_table(counts)
    num_ids = max(symbols) + 1 + min(max(num_tokens, 0), len(table.text))
    # Such arrays grow without a Python object for each id.
    ids, starts = array("i"), array("q", [0])
    tokenize = tokenize_by(tokenizer)
    for pretoken in table.pretokens():
        ids.extend([token.id for token in tokenize(pretoken)])
        starts.append(len(ids))
    merger = Merger(
        np.array(ids, dtype=np.int32), np.arange(num_ids, dtype=np.int32), np.array(starts, dtype=np.int64),
        table.counts, num_ids=num_ids, least=min_frequency,
    )  # fmt: skip
    return merges_of(merger, symbols, num_tokens, is_banned)


def merges_of(
    merger: Merger, symbols: dict[int, str], num_tokens: int, is_banned: Callable[[str], bool] | None = None
) -> list[Merge]:
    """Merge until there are enough new tokens or no pair occurs often enough.

    `symbols` maps ids to the byte symbols of all tokens. New ones are added with the next ids.
    """
    first = max(symbols) + 1
    taken = set(symbols.values())
    merges: list[Merge] = []
    with progress("merging", num_tokens) as bar:
        while len(merges) < num_tokens and (pair := merger.pair) is not None:
            left, right = symbols[pair[0]], symbols[pair[1]]
            joined = left + right
            # A second way to an old token would change how the base encodes. Training that begins at single bytes
            # never meets one: the same bytes become a token in the same way everywhere.
            if joined in taken or (is_banned is not None and is_banned(joined)):
                merger.discard()
                continue
            new = first + len(merges)
            symbols[new] = joined
            taken.add(joined)
            merges.append((left, right))
            merger.merge(new)
            bar.advance()
    return merges
