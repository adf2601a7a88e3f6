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

from anadil.core.progress import progress
from anadil.text.cut_patterns import ALPHABET, SYMBOLS, Merge
from anadil.tokenizer.merger import Merger
from anadil.tokenizer.word_counts import WordCounts, as_table


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
    """Train on a word-count table, with the merges of tokenizers' trainer; every smaller vocabulary is a `cut`.

    Args:
        counts: Pretoken in byte symbols -> how often it occurs.
        num_tokens: Most tokens, the 256 bytes included, special tokens not.
        min_frequency: Least count of a pair that is merged.
    """
    table = as_table(counts)
    # All 256 bytes, also those that the corpus lacks: later texts may hold them.
    ids = {symbol: number for number, symbol in enumerate(ALPHABET)}
    tokens = np.array([ids[symbol] for symbol in SYMBOLS], dtype=np.int32)
    # Each new token is two or more bytes of some word, so a size beyond all words needs no room.
    num_ids = min(max(num_tokens, len(ALPHABET)), len(ALPHABET) + len(table.text))
    merger = Merger(table.text, tokens, table.starts, table.counts, num_ids=num_ids, least=min_frequency)
    return TrainedVocabulary(merges=merges_of(merger, dict(enumerate(ALPHABET)), num_tokens - len(ALPHABET)))


def continue_merges(
    tokenizer: Tokenizer,
    counts: WordCounts | Mapping[str, int],
    num_tokens: int,
    min_frequency: int,
    is_banned: Callable[[str], bool] | None = None,
) -> list[Merge]:
    """Continue the base's BPE on a corpus; merge k makes new token k, and a smaller extension begins a larger one.

    Args:
        tokenizer: The base's, byte-level BPE.
        counts: Pretoken in byte symbols -> how often it occurs.
        num_tokens: Most tokens to add; fewer come back when no pair occurs often enough.
        min_frequency: Least count of a pair that is merged.
        is_banned: Test of a token's byte symbols; a banned one is not made.

    Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1, begun at the base's vocabulary.
    """
    symbols = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    table = as_table(counts)
    num_ids = max(symbols) + 1 + min(max(num_tokens, 0), len(table.text))
    # Such arrays grow without a Python object for each id.
    ids, starts = array("i"), array("q", [0])
    tokenize = tokenizer.model.tokenize
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
