"""Vocabularies of SentencePiece's kind: tokens are text with U+2581 for a blank, and each byte has one such as `<0x0A>`.

Llama 2, Mistral and Gemma have them. `tokenizer.json` lists every pair that makes a token, since SentencePiece and
llama.cpp join any two neighbours whose text is one.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from anadil.text.cut_patterns import SYMBOLS, JsonObject, Merge, pre_tokenizer_parts, to_symbols, to_text

if TYPE_CHECKING:
    from tokenizers import Token, Tokenizer

BLANK = "\u2581"
"""Stands for a space in tokens."""
NUM_BYTES = 256
PREPENDS: JsonObject = {"type": "Prepend", "prepend": BLANK}
REPLACES: JsonObject = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}


def is_of_pieces(content: JsonObject) -> bool:
    """True if bytes are tokens such as `<0x0A>`, not symbols."""
    return bool(content["model"].get("byte_fallback"))


BYTE_TOKENS: Mapping[str, int] = MappingProxyType({f"<0x{byte:02X}>": byte for byte in range(NUM_BYTES)})
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


def normalizer_parts(content: JsonObject) -> list[JsonObject]:
    """The steps of the normalizer."""
    normalizer = content.get("normalizer") or {"normalizers": []}
    parts: list[JsonObject] = normalizer.get("normalizers", [normalizer])
    return parts


def adds_blank(content: JsonObject) -> bool:
    """True if a text gets a space in front."""
    cuts = pre_tokenizer_parts(content.get("pre_tokenizer") or {})
    return PREPENDS in normalizer_parts(content) or any(
        each.get("prepend_scheme", "never") != "never" for each in cuts if each.get("type") == "Metaspace"
    )


def blanks_fault(content: JsonObject) -> str:
    """Reason why spaces are read otherwise than by SentencePiece; empty if they are not."""
    # It replaces spaces by `BLANK`, puts one before the text or not, and changes nothing else.
    parts = normalizer_parts(content)
    if others := [each["type"] for each in parts if each not in (PREPENDS, REPLACES)]:
        return f"it normalizes texts ({others[0]})"
    cuts = [each for each in pre_tokenizer_parts(content.get("pre_tokenizer") or {}) if each]
    metaspaces = [each for each in cuts if each.get("type") == "Metaspace" and each["replacement"] == BLANK]
    # Gemma's: there are no spaces any more where it would cut.
    idle = [each for each in cuts if each.get("pattern") == {"String": " "} and REPLACES in parts]
    if len(metaspaces) + len(idle) < len(cuts):
        return "it cuts texts otherwise than SentencePiece"
    if not metaspaces and REPLACES not in parts:
        return "it does not mark spaces"
    splits = any(each.get("split", True) for each in metaspaces)
    if splits and any(BLANK in text.lstrip(BLANK) for text in content["model"]["vocab"]):
        return "it cuts at every space, and has tokens that hold one"
    return ""


def pairs_that_make(tokens: Iterable[str], vocab: Container[str]) -> list[Merge]:
    """Every pair of a vocabulary's tokens that makes one of some tokens, in their order."""
    return [
        (token[:at], token[at:])
        for token in tokens
        for at in range(1, len(token))
        if token[:at] in vocab and token[at:] in vocab
    ]


def has_pieces(tokenizer: "Tokenizer") -> bool:
    """True for a vocabulary of SentencePiece's kind."""
    return bool(getattr(tokenizer.model, "byte_fallback", False))


def tokenize_by(tokenizer: "Tokenizer") -> Callable[[str], "list[Token]"]:
    """The function that gives the tokens of a pretoken in byte symbols, however the vocabulary writes text."""
    tokenize: Callable[[str], list[Token]] = tokenizer.model.tokenize
    if not has_pieces(tokenizer):
        return tokenize
    return lambda pretoken: tokenize(to_text(pretoken).replace(" ", BLANK))


def symbols_by(tokenizer: "Tokenizer") -> Callable[[str], str]:
    """The function that gives a token of the vocabulary in byte symbols."""
    return piece_symbols if has_pieces(tokenizer) else str


def piece_symbols(piece: str) -> str:
    """A piece in byte symbols."""
    byte = BYTE_TOKENS.get(piece)
    return to_symbols(piece.replace(BLANK, " ").encode()) if byte is None else SYMBOLS[byte]


class UnfitPieces:
    """Tokens that a vocabulary of pieces cannot take in, asked for each new token in order."""

    def __init__(self, content: JsonObject) -> None:
        """Sort the vocabulary from both ends."""
        self._vocab = set(content["model"]["vocab"])
        self._from_left = sorted(self._vocab)
        self._from_right = sorted(token[::-1] for token in self._vocab)
        # A text is cut at them before anything is merged.
        added = [each["content"] for each in content["added_tokens"] if not each["special"]]
        self._cut = re.compile("|".join([_BYTE_TOKEN.pattern, *map(re.escape, added)]))

    def __call__(self, token: str) -> bool:
        """Return True for a token that no text becomes, decodes otherwise, or would lead to a token of the base."""
        # The decoder knows single bytes only. SentencePiece would join such a token and its neighbour to the base's, and
        # a text without any new token would have other ids.
        if self._cut.search(token) or self._leads_on(token):
            return True
        self._vocab.add(token)
        return False

    def _leads_on(self, token: str) -> bool:
        return any(rest in self._vocab for rest in _rests(self._from_left, token)) or any(
            rest[::-1] in self._vocab for rest in _rests(self._from_right, token[::-1])
        )


def _rests(ordered: Sequence[str], start: str) -> Iterator[str]:
    """The rest of each string that begins with a start."""
    place = bisect_left(ordered, start)
    while place < len(ordered) and ordered[place].startswith(start):
        yield ordered[place][len(start) :]
        place += 1
