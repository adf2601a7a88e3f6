"""More tokens for the base's own BPE: the strategy `extend`.

The merges that training would add next, were it continued on the corpus, are appended after
all of the base's, so that each new token can be reached and text that holds none of them is
encoded as before. Appending the merges of a second BPE instead leaves most of them out of
reach, and `add_tokens` breaks decoding: a byte-level decoder takes letters such as u-umlaut
for byte symbols.
"""

from array import array
from collections.abc import Callable, Mapping

import numpy as np
from tokenizers import Tokenizer

from anadil.text.byte_symbols import Merge
from anadil.tokenizer.merger import Merger, SegmentedWords, merges_of
from anadil.tokenizer.word_counts import WordCounts, as_table


def continue_merges(
    tokenizer: Tokenizer,
    counts: WordCounts | Mapping[str, int],
    num_tokens: int,
    min_frequency: int,
    is_banned: Callable[[str], bool] | None = None,
) -> list[Merge]:
    """The merges that continue the base's BPE on a corpus; merge k makes new token k.

    A smaller extension is the start of a larger one. A pair whose joined text is a token already is left
    out for good: a second way to an old token would change how the base encodes.

    Args:
        tokenizer: The base's, byte-level BPE.
        counts: Pretoken in byte symbols -> how often it occurs.
        num_tokens: Most tokens to add; fewer come back when no pair occurs often enough.
        min_frequency: Least count of a pair that is merged.
        is_banned: Whether a token must not be made, by its byte symbols.

    Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1, begun at the base's vocabulary.
    """
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    symbols = {index: token for token, index in vocab.items()}
    table = as_table(counts)
    # Each new token is two or more bytes of some word, so that a size beyond all words needs no room.
    num_ids = max(symbols) + 1 + min(max(num_tokens, 0), len(table.text))
    merger = Merger(_segmented(tokenizer, table, num_ids), num_ids, min_frequency)
    return merges_of(merger, symbols, num_tokens, is_banned)


def _segmented(tokenizer: Tokenizer, table: WordCounts, num_ids: int) -> SegmentedWords:
    """Each pretoken as the tokens that the base has for it."""
    # Such arrays grow without a Python object for each id.
    ids, starts = array("i"), array("q", [0])
    tokenize = tokenizer.model.tokenize
    for pretoken in table.pretokens():
        ids.extend([token.id for token in tokenize(pretoken)])
        starts.append(len(ids))
    return SegmentedWords(
        ids=np.array(ids, dtype=np.int32),
        tokens=np.arange(num_ids, dtype=np.int32),
        starts=np.array(starts, dtype=np.int64),
        counts=table.counts,
    )
