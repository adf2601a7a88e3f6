"""A byte-level BPE of the tokenizers library, as the ranks that gigatoken works with."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anadil.text.byte_symbols import ALPHABET
from anadil.text.cut_patterns import known_pattern, pre_tokenizer_parts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BpeRanks:
    """A vocabulary in the order of merging, without gaps."""

    ids: NDArray[np.int32]
    """(ranks,): the token's id, which may stand in another order and with gaps."""
    content: str
    """`tokenizer.json` with ranks as ids, and without normalizer, added tokens and what adds BOS."""


def ranks_of(tokenizer: "Tokenizer") -> BpeRanks | str:
    """The ranks of a tokenizer, or why it has none with which gigatoken would give its ids.

    gigatoken joins two neighbours when their joined bytes are a token, the one of least rank first, and
    takes a whole word that is a token at once. `tokenizers` joins by a list of pairs. Both do the same where
    a token's rank is the place of the first pair that makes it. A token that no pair makes comes last:
    with `ignore_merges` a whole word may be one, without it nothing can. Added tokens have no rank, so no
    text becomes one.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    if why := _unlike(model):
        return why
    if known_pattern(content.get("pre_tokenizer")) is None:
        return "its text is cut by a pattern that is not known here"
    added = {token["content"] for token in content.get("added_tokens") or ()}
    vocab: dict[str, int] = {
        symbols: index for symbols, index in model["vocab"].items() if symbols not in added
    }
    alphabet = set(ALPHABET)
    if not alphabet <= vocab.keys():
        return "its vocabulary lacks some of the 256 bytes"
    tokenize = tokenizer.model.tokenize
    order = dict.fromkeys(ALPHABET)
    order |= dict.fromkeys(symbols for symbols in _merged(model["merges"]) if symbols in vocab)
    if model.get("ignore_merges"):
        whole = sorted(vocab.keys() - order.keys(), key=vocab.__getitem__)
        order |= dict.fromkeys(symbols for symbols in whole if alphabet.issuperset(symbols))
    elif any(len(tokenize(symbols)) > 1 for symbols in order):
        return "some of its tokens are not what their own text is merged to"
    cuts = pre_tokenizer_parts(content["pre_tokenizer"])
    # gigatoken would find added tokens and add BOS even if asked not to.
    bare = {name: content[name] for name in ("version", "decoder")} | {
        "added_tokens": [],
        # gigatoken knows no sequence of one.
        "pre_tokenizer": content["pre_tokenizer"] if len(cuts) > 1 else cuts[0],
        "model": model | {"vocab": {symbols: rank for rank, symbols in enumerate(order)}},
    }
    return BpeRanks(
        content=json.dumps(bare, ensure_ascii=False),
        ids=np.array([vocab[symbols] for symbols in order], dtype=np.int32),
    )


def _merged(merges: list[list[str] | str]) -> Iterator[str]:
    """The token that each merge makes; files of older versions hold `left right`."""
    for pair in merges:
        yield pair.replace(" ", "") if isinstance(pair, str) else "".join(pair)


def _unlike(model: JsonObject) -> str:
    """Reason why gigatoken cannot do what a model does; empty if it can."""
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    settings = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    return next((f"its model has {name}" for name in settings if model.get(name)), "")
