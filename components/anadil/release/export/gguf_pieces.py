"""SentencePiece's kind of tokenizer for GGUF: merges of characters by score, bytes for the rest.

llama.cpp merges any two neighbours, by the score of the result; `tokenizer.json` lists pairs in order. Both cut alike if
each pair that makes a token is listed, and the pairs of one token follow one another.
"""

from collections.abc import Iterator, Mapping

from anadil.text.cut_patterns import JsonObject, pre_tokenizer_parts

BLANK = "\u2581"
"""Stands for a space in tokens."""
NUM_BYTES = 256
PREPENDS: JsonObject = {"type": "Prepend", "prepend": BLANK}
REPLACES: JsonObject = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}


def is_of_pieces(content: JsonObject) -> bool:
    """True if bytes are tokens such as `<0x0A>`, not symbols."""
    return bool(content["model"].get("byte_fallback"))


def byte_token(byte: int) -> str:
    """Token of a byte that no other token covers."""
    return f"<0x{byte:02X}>"


def pieces_fault(content: JsonObject) -> str:
    """Reason why llama.cpp cannot cut as such a tokenizer; empty if it can."""
    model = content["model"]
    vocab: Mapping[str, int] = model["vocab"]
    if model.get("ignore_merges"):
        return "it takes whole pieces without merges"
    if missing := sum(byte_token(byte) not in vocab for byte in range(NUM_BYTES)):
        return f"its vocabulary lacks {missing} of the 256 bytes"
    return _blanks_fault(content) or _merges_fault(vocab, list(_pairs(model)))


def _blanks_fault(content: JsonObject) -> str:
    """Reason why spaces are read otherwise than by llama.cpp; empty if they are not."""
    # llama.cpp replaces spaces by `BLANK`, puts one before the text or not, and changes nothing else.
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


def blank_by_metaspace(content: JsonObject) -> str:
    """The texts that get a space in front in llama.cpp alone; empty for none."""
    cuts = pre_tokenizer_parts(content.get("pre_tokenizer") or {})
    schemes = {each.get("prepend_scheme") for each in cuts if each.get("type") == "Metaspace"}
    if "first" in schemes:
        return "a text that begins with one, and before text behind every special token"
    return "a text that begins with one" if "always" in schemes else ""


def _pairs(model: JsonObject) -> Iterator[tuple[str, str]]:
    for pair in model["merges"]:
        left, right = pair if isinstance(pair, list) else pair.split(" ")
        yield left, right


def _merges_fault(vocab: Mapping[str, int], pairs: list[tuple[str, str]]) -> str:
    seen, last = set(), ""
    for left, right in pairs:
        text = left + right
        if text != last and text in seen:
            return f"the merges that make {text!r} do not follow one another"
        seen.add(text)
        last = text
    listed = set(pairs)
    for text in vocab:
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            parts_known = (left in vocab or at == 1) and (right in vocab or len(right) == 1)
            if parts_known and (left, right) not in listed:
                return f"its merges do not make {text!r} of {left!r} and {right!r}, and llama.cpp would"
    return ""


def scores(model: JsonObject) -> dict[str, float]:
    """Token -> score, higher for earlier merges; only for tokens that merges make."""
    merged = dict.fromkeys(left + right for left, right in _pairs(model))
    return {text: -float(rank) for rank, text in enumerate(merged, 1)}
