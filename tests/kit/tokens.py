"""Tokens of a small corpus, as training makes them."""

from pathlib import Path

from anadil.artifacts.artifact import digest_of
from anadil.pretrain.data.training_tokens import made_tokens
from anadil.runtime.signals import Stop
from anadil.tokens.settings import Settings
from anadil.tokens.stored_tokens import StoredTokens


def settings_of(corpus: Path, tokenizer: Path, length: int = 32) -> Settings:
    """Settings of `encode` for a corpus."""
    return Settings(
        corpus=corpus,
        corpus_digest=digest_of(corpus),
        tokenizer=tokenizer,
        tokenizer_digest=digest_of(tokenizer),
        language="az",
        sequence_length=length,
    )


def tokens_of_corpus(
    corpus: Path, tokenizer: Path, work: Path, *, length: int = 32, write: bool = True
) -> StoredTokens:
    """Make and open them in a directory."""
    return made_tokens(settings_of(corpus, tokenizer, length), work, Stop(), write=write)
