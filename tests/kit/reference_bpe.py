"""BPE training done by others: what our merges are compared with."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer

Merge = tuple[str, str]


def library_merges(counts: Mapping[str, int], num_tokens: int, min_frequency: int) -> list[Merge]:
    """Those of tokenizers' own trainer, which takes text and not counts."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = WhitespaceSplit()  # no byte symbol is white space
    trainer = BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=min_frequency,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_spelled_out(counts), trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _spelled_out(counts: Mapping[str, int]) -> Iterator[str]:
    for pretoken, count in counts.items():
        for start in range(0, count, 1_000):
            yield f"{pretoken} " * min(1_000, count - start)


def plain_merges(
    words: Mapping[tuple[str, ...], int],
    vocab: Mapping[str, int],
    num_tokens: int,
    min_frequency: int,
    is_banned: Callable[[str], bool] = lambda _: False,
) -> list[Merge]:
    """Those of the textbook: count all pairs again after each merge."""
    ids, merges, discarded = dict(vocab), list[Merge](), set[Merge]()
    while len(merges) < num_tokens:
        pairs = Counter[Merge]()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        left = {
            pair: count for pair, count in pairs.items() if pair not in discarded and count >= min_frequency
        }
        if not left:
            break
        best = min(left, key=lambda pair: (-left[pair], ids[pair[0]], ids[pair[1]]))
        joined = best[0] + best[1]
        if joined in ids or is_banned(joined):
            discarded.add(best)
            continue
        ids[joined] = max(ids.values()) + 1
        merges.append(best)
        merged = Counter[tuple[str, ...]]()
        for word, count in words.items():
            merged[merged_word(word, best)] += count
        words = merged
    return merges


def merged_word(word: tuple[str, ...], pair: Merge) -> tuple[str, ...]:
    """A word after one merge, from the left."""
    done, place = list[str](), 0
    while place < len(word):
        length = 2 if word[place : place + 2] == pair else 1
        done.append("".join(word[place : place + length]))
        place += length
    return tuple(done)
