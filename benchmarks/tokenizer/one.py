"""One training in a process of its own: `one.py TOOL CORPUS SIZE TABLE`; prints how many tokens came out."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOL, CORPUS, SIZE, TABLE = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts() -> Iterator[str]:
    """All tools read the same lines in the same way."""
    with CORPUS.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def bare() -> Any:
    """A tokenizer without vocabulary that cuts as Llama 3's does."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(REGEX), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return tokenizer


def library() -> int:
    """tokenizers, from text."""
    from tokenizers import trainers
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = bare()
    alphabet = ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    TABLE.with_suffix(".library").write_text(json.dumps(json.loads(tokenizer.to_str())["model"]["merges"]))
    return int(tokenizer.get_vocab_size())


def rustbpe() -> int:
    """rustbpe, from text."""
    import rustbpe as peer

    tokenizer = peer.Tokenizer()
    tokenizer.train_from_iterator(texts(), SIZE, buffer_size=256, pattern=REGEX)
    return int(tokenizer.vocab_size)


def count() -> int:
    """Our table."""
    from anadil.tokenizer.pretokens import count_texts
    from anadil.tokenizer.word_counts import write_counts

    table = count_texts(bare(), texts())
    write_counts(table, TABLE)
    return len(table)


def merge() -> int:
    """Our merges, from the table."""
    from anadil.tokenizer.bpe import train_vocabulary
    from anadil.tokenizer.word_counts import read_counts

    trained = train_vocabulary(read_counts(TABLE), SIZE, 2)
    TABLE.with_suffix(".ours").write_text(json.dumps(trained.merges))
    return 256 + len(trained.merges)


def whole() -> int:
    """Our table and merges, in one process."""
    from anadil.tokenizer.bpe import train_vocabulary
    from anadil.tokenizer.pretokens import count_texts

    return 256 + len(train_vocabulary(count_texts(bare(), texts()), SIZE, 2).merges)


def extend() -> int:
    """Our continued merges, from the table, on half of what a vocabulary of that size has."""
    from tokenizers import Tokenizer, models

    from anadil.tokenizer.bpe import TrainedVocabulary, continue_merges
    from anadil.tokenizer.word_counts import read_counts

    merges = [(left, right) for left, right in json.loads(TABLE.with_suffix(".ours").read_text())]
    vocab, merges = TrainedVocabulary(merges=merges).cut(SIZE // 2)
    base = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    return len(continue_merges(base, read_counts(TABLE), SIZE // 4, 2))


def compile_kernels() -> int:
    """Nothing but what makes later runs load compiled code."""
    from anadil.tokenizer.warm_kernels import warm_kernels

    warm_kernels()
    return 0


TOOLS = {each.__name__: each for each in (library, rustbpe, count, merge, whole, extend, compile_kernels)}
print(TOOLS[TOOL]())
