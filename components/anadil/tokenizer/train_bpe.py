"""A new byte-level BPE from the corpus: the strategy `replace`."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.pretokens import MAX_PAIR_COUNT, largest_pair_count

log = logging.getLogger(__name__)

CHUNK_CHARS = 65_536
"""Text handed to the trainer at a time; it works on 256 such pieces in parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedVocabulary:
    """An ordered vocabulary: the start of it is the smaller vocabulary of the same corpus."""

    alphabet: list[str]
    """The 256 byte symbols, ids 0 to 255."""
    merges: list[tuple[str, str]]

    def cut(self, num_tokens: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Vocabulary (token -> id) and merges of at most `num_tokens` tokens."""
        vocab = {symbol: index for index, symbol in enumerate(self.alphabet)}
        for position, (left, right) in enumerate(self.merges):
            if len(vocab) >= num_tokens:
                return vocab, self.merges[:position]
            # Two merges may give the same token.
            vocab.setdefault(left + right, len(vocab))
        return vocab, self.merges


def train_vocabulary(counts: Mapping[str, int], num_tokens: int, min_frequency: int) -> TrainedVocabulary:
    """Train on a word-count table; every smaller vocabulary is a `cut` of the result.

    Args:
        counts: Pretoken in byte symbols -> how often it occurs.
        num_tokens: Most tokens, the 256 byte symbols included, special tokens not.
        min_frequency: Least count of a pair that is merged.
    """
    alphabet = sorted(ByteLevel.alphabet())
    if largest_pair_count(counts) > MAX_PAIR_COUNT:
        log.warning(
            "the corpus is too large for tokenizers' counters; training in Python, which takes longer"
        )
        bare = Tokenizer(BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
        merges = continue_merges(bare, counts, num_tokens - len(alphabet), min_frequency)
        return TrainedVocabulary(alphabet=alphabet, merges=merges)
    tokenizer = Tokenizer(BPE())
    # The pretokens are cut already, and no byte symbol is white space.
    tokenizer.pre_tokenizer = WhitespaceSplit()
    trainer = BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=min_frequency,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_spelled_out(counts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return TrainedVocabulary(alphabet=alphabet, merges=[(left, right) for left, right in model["merges"]])


def _spelled_out(counts: Mapping[str, int]) -> Iterator[str]:
    """Every pretoken as often as it occurs: the trainer takes text, not counts."""
    chunk: list[str] = []
    size = 0
    for pretoken, count in counts.items():
        word = f"{pretoken} "
        left = count
        while left:
            num = min(left, max(1, (CHUNK_CHARS - size) // len(word)))
            chunk.append(word * num)
            size += len(word) * num
            left -= num
            if size >= CHUNK_CHARS - len(word):
                yield "".join(chunk)
                chunk, size = [], 0
    yield "".join(chunk)
