"""Pre-tokenizers: tokenizers of nothing else, and their form in tokenizer.json."""

from typing import Any

from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import PreTokenizer

BYTES: dict[str, Any] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
"""Bytes as symbols, which cuts nothing."""


def split(pattern: str) -> dict[str, Any]:
    """Return a cut by a pattern, as tokenizer.json writes it."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def tokenizer_of(pre_tokenizer: PreTokenizer) -> Tokenizer:
    """Make a tokenizer that cuts and knows no token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer
