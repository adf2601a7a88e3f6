"""A smaller base for `extend`: without the tokens that neither kept texts nor the corpus use.

Each token left out saves a row of the embedding, and of the softmax. Words that the sample of the
kept languages does not hold may take more tokens afterwards, so the sample has to be large.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterable

from tokenizers import Tokenizer

from anadil.core.errors import DataError
from anadil.core.format import MIB
from anadil.tokenizer.candidate import JsonObject, replace_vocabulary

log = logging.getLogger(__name__)

LEAST_KEPT_BYTES = MIB
"""Least size of the kept texts: in less, most words of a language do not occur. Assumption."""


def pruned_base(
    base: Tokenizer, words: Iterable[tuple[str, int]], keep: Iterable[tuple[str, int]]
) -> Tokenizer:
    """The base's tokenizer without unused tokens; ids are renumbered, special tokens last.

    What a used token is made of stays, so that every text of the sample and of the corpus is cut as before.

    Args:
        base: Byte-level BPE.
        words: The corpus's word-count table: pretoken in byte symbols, count.
        keep: That of the texts that must not change.

    Raises:
        DataError: The kept texts are too short to say what their languages need.
    """
    keep = list(keep)
    num_bytes = sum(len(word) * count for word, count in keep)
    if num_bytes < LEAST_KEPT_BYTES:
        raise DataError(
            f"tokenizer.prune: the texts of tokenizer.keep have {num_bytes:,} bytes, and tokens that such a short sample "
            f"does not use may well be needed; name files of at least {LEAST_KEPT_BYTES:,} bytes in tokenizer.keep, "
            "or set tokenizer.prune to false"
        )
    content = json.loads(base.to_str())
    model = content["model"]
    needed = _needed(base, model, [word for each in (words, keep) for word, _ in each])
    special = {token["content"] for token in content["added_tokens"]}
    old = sorted(model["vocab"], key=model["vocab"].__getitem__)
    # All bytes stay, or some text could not be encoded.
    staying = [token for token in old if token not in special and (len(token) == 1 or token in needed)]
    vocab = {token: index for index, token in enumerate(staying)}
    merges = [(left, right) for left, right in model["merges"] if {left, right, left + right} <= vocab.keys()]
    log.info("left out %s tokens of the base that no text uses", f"{len(old) - len(staying):,}")
    return replace_vocabulary(base, vocab, merges)


def _needed(base: Tokenizer, model: JsonObject, words: Iterable[str]) -> set[str]:
    """Tokens that words are cut into, and all that those can be made of."""
    parts: dict[str, list[str]] = defaultdict(list)
    for left, right in model["merges"]:
        parts[left + right] += (left, right)
    needed: set[str] = set()
    queue = {token.value for word in words for token in base.model.tokenize(word)}
    while queue:
        token = queue.pop()
        needed.add(token)
        queue.update(part for part in parts.get(token, ()) if part not in needed)
    return needed
