"""More tokens for the base's own BPE: the strategy `extend`.

The merges that training would add next, were it continued on the corpus, are appended after
all of the base's, so that each new token can be reached and text that holds none of them is
encoded as before. Appending the merges of a second BPE instead leaves most of them out of
reach, and `add_tokens` breaks decoding: a byte-level decoder takes letters such as u-umlaut
for byte symbols.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise

from tokenizers import Tokenizer

from anadil.core.progress import progress

Pair = tuple[int, int]


class _Words:
    """The segmented words of a corpus, and the pairs of neighbouring ids in them."""

    def __init__(self, tokenizer: Tokenizer, counts: Mapping[str, int]) -> None:
        self.ids: list[list[int]] = []
        self.counts: list[int] = []
        self.pairs: dict[Pair, int] = defaultdict(int)
        """How often each pair occurs; Python's integers do not overflow."""
        self._where: dict[Pair, set[int]] = defaultdict(set)
        for word, count in counts.items():
            ids = [token.id for token in tokenizer.model.tokenize(word)]
            if len(ids) > 1:
                self.ids.append(ids)
                self.counts.append(count)
                self._add(len(self.ids) - 1)

    def merge(self, pair: Pair, new: int) -> set[Pair]:
        """Write `new` wherever the pair stands; the pairs that came up thereby."""
        appeared: set[Pair] = set()
        for index in self._where.pop(pair):
            ids, count = self.ids[index], self.counts[index]
            position = 0
            while position < len(ids) - 1:
                if (ids[position], ids[position + 1]) == pair:
                    if position:
                        before = ids[position - 1]
                        appeared.add(self._exchange((before, pair[0]), (before, new), count, index))
                    if position + 2 < len(ids):
                        after = ids[position + 2]
                        appeared.add(self._exchange((pair[1], after), (new, after), count, index))
                    ids[position : position + 2] = [new]
                position += 1
        del self.pairs[pair]
        return appeared

    def _exchange(self, old: Pair, new: Pair, count: int, index: int) -> Pair:
        """Count `new` instead of `old` in one word."""
        self.pairs[old] -= count
        self.pairs[new] += count
        self._where[new].add(index)
        return new

    def _add(self, index: int) -> None:
        for pair in pairwise(self.ids[index]):
            self.pairs[pair] += self.counts[index]
            self._where[pair].add(index)


def continue_merges(
    tokenizer: Tokenizer,
    counts: Mapping[str, int],
    num_tokens: int,
    min_frequency: int,
    is_banned: Callable[[str], bool] | None = None,
) -> list[tuple[str, str]]:
    """The merges that continue the base's BPE on a corpus; merge k makes new token k.

    A smaller extension is the start of a larger one.

    Args:
        tokenizer: The base's, byte-level BPE.
        counts: Pretoken in byte symbols -> how often it occurs.
        num_tokens: Most tokens to add; fewer come back when no pair occurs often enough.
        min_frequency: Least count of a pair that is merged.
        is_banned: Says of a string, in byte symbols, that it must not become a token.

    Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1, begun at the base's vocabulary.
    """
    words = _Words(tokenizer, counts)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    symbols = {index: token for token, index in vocab.items()}
    first = max(symbols) + 1
    taken = set(vocab)
    merges: list[tuple[str, str]] = []
    heap = [(-count, *pair) for pair, count in words.pairs.items()]
    heapq.heapify(heap)
    with progress("adding tokens", num_tokens) as bar:
        while heap and len(merges) < num_tokens:
            negative, left, right = heapq.heappop(heap)
            count = words.pairs.get((left, right), 0)
            if count != -negative:
                # The entry is stale: the count has fallen since it was pushed.
                heapq.heappush(heap, (-count, left, right))
                continue
            if count < min_frequency:
                break
            joined = symbols[left] + symbols[right]
            if joined in taken or (is_banned is not None and is_banned(joined)):
                # A second way to an old token would change how the base encodes.
                continue
            new = first + len(merges)
            merges.append((symbols[left], symbols[right]))
            symbols[new] = joined
            taken.add(joined)
            for pair in words.merge((left, right), new):
                heapq.heappush(heap, (-words.pairs[pair], *pair))
            bar.advance()
    return merges
