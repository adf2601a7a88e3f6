"""Which of llama.cpp's pre-tokenizers cuts texts as a tokenizer does: known before anything is trained.

A GGUF file has no place for an expression. It names one that llama.cpp has, with code of its own.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anadil.text.byte_symbols import ALPHABET
from anadil.text.cut_patterns import (
    GPT_2_REGEX,
    LLAMA_3_REGEX,
    QWEN_3_5_REGEX,
    QWEN_REGEX,
    JsonObject,
    pre_tokenizer_parts,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GGUF_MODEL = "llama"
"""The model type that is written as GGUF."""
DIGIT, DIGITS = r"\p{N}", r"\p{N}+"
DEEPSEEK_V3_REGEXES = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
"""Source: deepseek-ai/DeepSeek-V3, tokenizer.json."""
NAMES: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        (LLAMA_3_REGEX,): "llama-bpe",
        (QWEN_REGEX,): "qwen2",
        (QWEN_3_5_REGEX,): "qwen35",
        (GPT_2_REGEX,): "gpt-2",
        (DIGIT, GPT_2_REGEX): "smollm",
        DEEPSEEK_V3_REGEXES: "deepseek-v3",
    }
)
"""Expressions, one after another -> llama.cpp's name. Source: llama.cpp, src/llama-vocab.cpp and src/unicode.cpp.

Its own code for o200k's expression (`gpt-4o`) cuts Thai otherwise than that expression does, so it is not among them.
"""
TAKES_WHOLE_PIECES = "llama-bpe"
"""The one of them for which llama.cpp takes a piece that is a token as it is, whether merges make it or not."""


def expressions(pre_tokenizer: JsonObject | None) -> tuple[str, ...] | None:
    """What a pre-tokenizer cuts by, one after another, before it writes byte symbols; None for any other kind."""
    *before, last = pre_tokenizer_parts(pre_tokenizer or {})
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    found = [*map(_expression, before), GPT_2_REGEX if last.get("use_regex", True) else ""]
    return None if None in found else tuple(filter(None, found))


def _expression(part: JsonObject) -> str | None:
    if part.get("type") == "Digits":
        return DIGIT if part.get("individual_digits") else DIGITS
    if part.get("type") == "Split" and part.get("behavior") == "Isolated" and not part.get("invert"):
        # A slash before a quotation mark means nothing; files have it or not.
        pattern: str | None = part["pattern"].get("Regex")
        return pattern and pattern.replace(r"[!\"#", '[!"#').replace('[!"#', r"[!\"#")
    return None


def gguf_fault(tokenizer: "Tokenizer") -> str:
    """Why llama.cpp cannot read a tokenizer; empty where it can."""
    content = json.loads(tokenizer.to_str())
    model, cuts = content["model"], expressions(content.get("pre_tokenizer"))
    normalizer = content.get("normalizer")
    faults = {
        f"it is of type {model.get('type')}, not BPE": model.get("type") != "BPE",
        f"it normalizes texts ({normalizer and normalizer['type']})": normalizer
        not in (None, {"type": "NFC"}),
        "it drops merges at random": bool(model.get("dropout")),
        "it marks the beginnings or ends of words": bool(
            model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        ),
        "it reads a byte that it lacks as its unknown token": bool(model.get("unk_token"))
        and not set(ALPHABET) <= model.get("vocab", {}).keys(),
        f"it cuts texts by another expression than {', '.join(NAMES.values())}": cuts not in NAMES,
    }
    if fault := next((reason for reason, holds in faults.items() if holds), ""):
        return fault
    for each in content.get("added_tokens", ()):
        if not each["special"] and (each["lstrip"] or each["rstrip"] or each["single_word"]):
            return f"its added token {each['content']!r} swallows blanks round it"
    takes_whole = gguf_name(content) == TAKES_WHOLE_PIECES
    if model.get("ignore_merges") and takes_whole:
        return ""
    unmerged = _unmerged(content)
    does = "would take" if takes_whole else "makes of merges alone"
    return f"its merges do not make the token {unmerged!r}, which llama.cpp {does}" if unmerged else ""


def gguf_note(tokenizer: "Tokenizer") -> str:
    """What llama.cpp does otherwise with a tokenizer without `gguf_fault`; empty for nothing."""
    notes = []
    if tokenizer.normalizer is not None:
        notes.append("llama.cpp does not normalize: a text that is not in NFC becomes other tokens there")
    if missing := len(set(ALPHABET) - tokenizer.get_vocab(with_added_tokens=False).keys()):
        notes.append(
            f"its vocabulary lacks {missing} of the 256 bytes: a text that holds one becomes other tokens in llama.cpp"
        )
    return "; ".join(notes)


def gguf_name(content: Mapping[str, Any]) -> str:
    """The name of llama.cpp's pre-tokenizer for a tokenizer without `gguf_fault`."""
    cuts = expressions(content.get("pre_tokenizer"))
    assert cuts is not None, "asked after gguf_fault"
    return NAMES[cuts]


def _unmerged(content: JsonObject) -> str | None:
    """A token that its own merges do not make, if there is one."""
    from tokenizers import Tokenizer

    model = content["model"]
    merging = content | {"model": model | {"ignore_merges": False}}
    tokenize = Tokenizer.from_str(json.dumps(merging, ensure_ascii=False)).model.tokenize
    alphabet = set(ALPHABET)
    added = {each["content"] for each in content.get("added_tokens", ())}
    ordinary = (text for text in model["vocab"] if text not in added and alphabet.issuperset(text))
    return next((text for text in ordinary if len(tokenize(text)) != 1), None)
