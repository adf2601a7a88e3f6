"""How often each pretoken stands in the train documents: counted once, read by every trainer.

A pretoken is what the pre-tokenizer cuts a text into; merges never cross its borders. It is
written in byte symbols: one character of the byte-level alphabet for each UTF-8 byte.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from anadil.core.errors import DataError

log = logging.getLogger(__name__)

MAX_PRETOKEN_BYTES = 256
"""Longer ones are dropped: they are no words, and training on one of 1 MB does not end (tokenizers 0.23.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretokens:
    """The word-count table of a corpus."""

    counts: Mapping[str, int]
    """Pretoken in byte symbols -> how often it occurs, in order of first occurrence."""
    num_documents: int
    num_too_long: int
    """Occurrences of pretokens over 256 bytes, which were left out."""


def count_pretokens(tokenizer: Tokenizer, texts: Iterable[str]) -> Pretokens:
    """Count the pretokens of texts as the tokenizer's own normalizer and pre-tokenizer cut them.

    Memory follows the number of different pretokens, some 0.2 KB each.

    Raises:
        DataError: The texts hold none.
    """
    counts: Counter[str] = Counter()
    num_documents = 0
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    for text in texts:
        if normalizer is not None:
            text = normalizer.normalize_str(text)  # noqa: PLW2901  the same text, as the tokenizer sees it
        counts.update([piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)])
        num_documents += 1
    too_long = [pretoken for pretoken in counts if len(pretoken) > MAX_PRETOKEN_BYTES]
    num_too_long = sum(counts.pop(pretoken) for pretoken in too_long)
    if not counts:
        raise DataError(
            f"tokenizer: the {num_documents} train documents hold no words of at most {MAX_PRETOKEN_BYTES} bytes; "
            "look at the corpus, and run clean again with more inputs"
        )
    if num_too_long:
        log.warning("left out %d pretokens of more than %d bytes", num_too_long, MAX_PRETOKEN_BYTES)
    return Pretokens(counts=counts, num_documents=num_documents, num_too_long=num_too_long)
