"""A new byte-level BPE from the corpus: the strategy `replace`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anadil.text.byte_symbols import ALPHABET, SYMBOLS, Merge
from anadil.tokenizer.merger import Merger, SegmentedWords, merges_of
from anadil.tokenizer.word_counts import WordCounts, as_table


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedVocabulary:
    """An ordered vocabulary: the start of it is the smaller vocabulary of the same corpus."""

    alphabet: list[str]
    """The 256 byte symbols, ids 0 to 255."""
    merges: list[Merge]

    def cut(self, num_tokens: int) -> tuple[dict[str, int], list[Merge]]:
        """Vocabulary (token -> id) and merges of at most `num_tokens` tokens, the bytes always among them."""
        merges = self.merges[: max(0, num_tokens - len(self.alphabet))]
        tokens = [*self.alphabet, *(left + right for left, right in merges)]
        return {token: index for index, token in enumerate(tokens)}, merges


def train_vocabulary(
    counts: WordCounts | Mapping[str, int], num_tokens: int, min_frequency: int
) -> TrainedVocabulary:
    """Train on a word-count table; every smaller vocabulary is a `cut` of the result.

    The merges are those of tokenizers' trainer for the same pretokens.

    Args:
        counts: Pretoken in byte symbols -> how often it occurs.
        num_tokens: Most tokens, the 256 byte symbols included, special tokens not.
        min_frequency: Least count of a pair that is merged.
    """
    table = as_table(counts)
    # All 256 bytes, also those that the corpus lacks: later texts may hold them.
    alphabet = list(ALPHABET)
    ids = {symbol: number for number, symbol in enumerate(alphabet)}
    words = SegmentedWords(
        ids=table.text,
        tokens=np.array([ids[symbol] for symbol in SYMBOLS], dtype=np.int32),
        starts=table.starts,
        counts=table.counts,
    )
    # Each new token is two or more bytes of some word, so that a size beyond all words needs no room.
    num_ids = min(max(num_tokens, len(alphabet)), len(alphabet) + len(table.text))
    merger = Merger(words, num_ids, min_frequency)
    merges = merges_of(merger, dict(enumerate(alphabet)), num_tokens - len(alphabet))
    return TrainedVocabulary(alphabet=alphabet, merges=merges)
