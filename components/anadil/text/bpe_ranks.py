"""A byte-level BPE of the tokenizers library, as the ranks that tiktoken works with."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anadil.text.cut_patterns import GPT_2_REGEX, KNOWN_PATTERNS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BpeRanks:
    """What tiktoken needs."""

    pattern: str
    """Where a text is cut."""
    ranks: dict[bytes, int]
    """Token -> its place in the order of merging, without gaps."""
    ids: NDArray[np.int32]
    """(ranks,): the token's id, which may stand in another order and with gaps."""
    content: str
    """`tokenizer.json` with ranks as ids, and without normalizer, added tokens and what adds BOS."""


def ranks_of(tokenizer: "Tokenizer") -> BpeRanks | str:
    """The ranks of a tokenizer, or why it has none with which tiktoken would give its ids.

    tiktoken joins two neighbours when their joined bytes are a token, the one of least rank first, and
    takes a whole word that is a token at once. `tokenizers` joins by a list of pairs. Both do the same where
    a token's rank is the place of the first pair that makes it. A token that no pair makes comes last:
    with `ignore_merges` a whole word may be one, without it nothing can. Added tokens have no rank, so no
    text becomes one.
    """
    content = json.loads(tokenizer.to_str())
    model, pattern = content["model"], _pattern(content.get("pre_tokenizer") or {})
    if why := _unlike(model):
        return why
    if pattern is None:
        return "its text is cut by a pattern that is not known here"
    added = {token["content"] for token in content.get("added_tokens") or ()}
    vocab: dict[str, int] = {
        symbols: index for symbols, index in model["vocab"].items() if symbols not in added
    }
    byte_of = byte_symbols()
    if not byte_of.keys() <= vocab.keys():
        return "its vocabulary lacks some of the 256 bytes"
    tokenize = tokenizer.model.tokenize
    order = dict.fromkeys(byte_of)
    order |= dict.fromkeys(symbols for symbols in _merged(model["merges"]) if symbols in vocab)
    if model.get("ignore_merges"):
        whole = sorted(vocab.keys() - order.keys(), key=vocab.__getitem__)
        order |= dict.fromkeys(symbols for symbols in whole if byte_of.keys() >= set(symbols))
    elif any(len(tokenize(symbols)) > 1 for symbols in order):
        return "some of its tokens are not what their own text is merged to"
    cuts = _cuts(content["pre_tokenizer"])
    bare = {name: content[name] for name in ("version", "decoder")} | {
        "added_tokens": [],
        # gigatoken knows no sequence of one.
        "pre_tokenizer": content["pre_tokenizer"] if len(cuts) > 1 else cuts[0],
        "model": model | {"vocab": {symbols: rank for rank, symbols in enumerate(order)}},
    }
    return BpeRanks(
        pattern=pattern,
        content=json.dumps(bare, ensure_ascii=False),
        ranks={bytes(map(byte_of.__getitem__, symbols)): rank for rank, symbols in enumerate(order)},
        ids=np.array([vocab[symbols] for symbols in order], dtype=np.int32),
    )


def byte_symbols() -> dict[str, int]:
    """Printable letter of each byte -> the byte.

    Source: bytes_to_unicode in openai/gpt-2, src/encoder.py.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def pretoken_texts(pretokens: Iterable[str]) -> Iterator[str]:
    """The texts of pretokens that are shown in byte symbols, as a word-count table holds them."""
    byte_of = byte_symbols()
    for pretoken in pretokens:
        yield bytes(map(byte_of.__getitem__, pretoken)).decode(errors="replace")


def _merged(merges: list[list[str] | str]) -> Iterator[str]:
    """The token that each merge makes; files of older versions hold `left right`."""
    for pair in merges:
        yield pair.replace(" ", "") if isinstance(pair, str) else "".join(pair)


def _unlike(model: JsonObject) -> str:
    """What a model has that tiktoken does not know; empty where it has nothing of it."""
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    settings = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    return next((f"its model has {name}" for name in settings if model.get(name)), "")


def _cuts(cutting: JsonObject) -> list[JsonObject]:
    """The parts of a pre-tokenizer."""
    parts: list[JsonObject] = cutting.get("pretokenizers", [cutting])
    return parts


def _pattern(cutting: JsonObject) -> str | None:
    """The pattern of a pre-tokenizer that cuts by a known one and then shows bytes as letters."""
    *before, last = _cuts(cutting)
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not before:
        return GPT_2_REGEX if last.get("use_regex", True) else None
    split = before[0]
    is_known = (
        len(before) == 1
        and not last.get("use_regex", True)
        and split.get("type") == "Split"
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
        and split.get("pattern", {}).get("Regex") in KNOWN_PATTERNS
    )
    return split["pattern"]["Regex"] if is_known else None
