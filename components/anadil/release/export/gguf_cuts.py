"""Pre-tokenizers of llama.cpp that cut texts as a given tokenizer does.

A GGUF file holds no expression, only the name of one in llama.cpp's code.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from anadil.release.export.gguf_pieces import blank_by_metaspace, is_of_pieces, pieces_fault
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

SENTENCE_PIECE = "default"
"""llama.cpp's name for no cuts."""
DIGIT, DIGITS = r"\p{N}", r"\p{N}+"
JAIS_2_REGEX = LLAMA_3_REGEX.removesuffix(r"|\s+(?!\S)|\s+") + "".join(
    [rf"|\s{{{number}}}(?!\S)" for number in (512, 256, 128, 64, 32, 16, 8, 4)] + [r"|\s{1,2}(?!\S)|\s{1}"]
)
SEED_CODER_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BAILING_REGEX = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
UFAKZEKA_REGEX = QWEN_REGEX.removeprefix("(?i:'s|'t|'re|'ve|'m|'ll|'d)|")
BLOOM_REGEX = r" ?[^(\s|.,!?…。，、।۔،)]+"
"""Source of the five: llama.cpp, src/llama-vocab.cpp, where comments have those of tokenizer.json."""
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
        (JAIS_2_REGEX,): "jais-2",
        (SEED_CODER_REGEX,): "seed-coder",
        (BAILING_REGEX,): "bailingmoe",
        (UFAKZEKA_REGEX,): "ufakzeka",
        (BLOOM_REGEX,): "bloom",
        (BLOOM_REGEX, DIGIT): "viking",
    }
)
"""Expressions, one after another -> llama.cpp's name. Source: llama.cpp, src/llama-vocab.cpp and src/unicode.cpp."""
# llama.cpp's code for `gpt-4o`, `tekken`, `superbpe`, `exaone-moe` and `deepseek-coder` cuts otherwise than their
# expressions, so those names are missing.
TAKES_WHOLE = "llama-bpe"
"""The one name for which llama.cpp takes a whole piece as a token without its merges."""
SAME_CUTS = "smaug-bpe"
CONTROLS = ("</s>", "<eos>", "<EOT>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
"""Texts that llama.cpp takes for ends whatever a file says of them. Source: llama.cpp, src/llama-vocab.cpp."""


def expressions(pre_tokenizer: JsonObject | None) -> tuple[str, ...] | None:
    """Expressions of a byte-level pre-tokenizer, in order; None for any other kind."""
    *before, last = pre_tokenizer_parts(pre_tokenizer or {})
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    patterns = [*map(_expression, before), GPT_2_REGEX if last.get("use_regex", True) else ""]
    return None if None in patterns else tuple(filter(None, patterns))


def _expression(part: JsonObject) -> str | None:
    if part.get("type") == "Digits":
        return DIGIT if part.get("individual_digits") else DIGITS
    if part.get("type") == "Split":
        pattern: str | None = part["pattern"].get("Regex")
        how = (part.get("behavior"), bool(part.get("invert")))
        # tiktoken's spelling: keep the matches and drop the rest, which is empty here.
        covers = how == ("Removed", True) and (pattern or "").endswith(r"|\s+")
        if how != ("Isolated", False) and not covers:
            return None
        # A slash before a quotation mark means nothing; files have it or not.
        return pattern and pattern.replace(r"[!\"#", '[!"#').replace('[!"#', r"[!\"#")
    return None


def gguf_fault(tokenizer: "Tokenizer") -> str:
    """Reason why llama.cpp cannot read a tokenizer; empty if it can."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    if model.get("type") != "BPE":
        return f"it is of type {model.get('type')}, not BPE"
    if model.get("dropout"):
        return "it drops merges at random"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "it marks the beginnings or ends of words"
    texts = tokenizer.get_vocab(with_added_tokens=True)
    if cut := next((text for text in texts if "\0" in text), None):
        return f"its token {cut!r} holds a NUL, at which llama.cpp ends a text"
    for each in content.get("added_tokens", ()):
        if not each["special"] and (each["lstrip"] or each["rstrip"] or each["single_word"]):
            return f"its added token {each['content']!r} swallows blanks round it"
    return pieces_fault(content) if is_of_pieces(content) else _byte_level_fault(content)


def _byte_level_fault(content: JsonObject) -> str:
    model, normalizer = content["model"], content.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        return f"it normalizes texts ({normalizer['type']})"
    if model.get("unk_token") and not set(ALPHABET) <= model["vocab"].keys():
        return "it reads a byte that it lacks as its unknown token"
    cuts = expressions(content.get("pre_tokenizer"))
    if cuts is None or cuts not in NAMES:
        return f"it cuts texts by another expression than {', '.join(NAMES.values())}"
    if (unmerged := _unmerged(content)) and not (model.get("ignore_merges") and NAMES[cuts] == TAKES_WHOLE):
        return f"its merges do not make the token {unmerged!r}, which llama.cpp makes of merges alone"
    return ""


def gguf_note(tokenizer: "Tokenizer") -> str:
    """Differences in llama.cpp for a tokenizer without `gguf_fault`; empty for none."""
    notes = []
    content = json.loads(tokenizer.to_str())
    if is_of_pieces(content):
        if by_metaspace := blank_by_metaspace(content):
            notes.append(f"llama.cpp puts a space before {by_metaspace}")
    elif tokenizer.normalizer is not None:
        notes.append("llama.cpp does not normalize: a text that is not in NFC becomes other tokens there")
    elif missing := len(set(ALPHABET) - tokenizer.get_vocab(with_added_tokens=False).keys()):
        notes.append(
            f"its vocabulary lacks {missing} of the 256 bytes: a text that holds one becomes other tokens in llama.cpp"
        )
    added = content.get("added_tokens", ())
    special = {each["content"] for each in added if each["special"]}
    ordinary = {*content["model"]["vocab"], *(each["content"] for each in added)} - special
    if ends := sorted(ordinary.intersection(CONTROLS)):
        notes.append(f"llama.cpp takes the token {ends[0]!r} for a control token, which a text cannot hold")
    if stripping := [each["content"] for each in added if each["lstrip"] or each["rstrip"]]:
        notes.append(f"blanks beside {stripping[0]!r} are swallowed here, and tokens in llama.cpp")
    return "; ".join(notes)


def gguf_name(content: JsonObject) -> str:
    """The name of llama.cpp's pre-tokenizer for a tokenizer without `gguf_fault`."""
    if is_of_pieces(content):
        return SENTENCE_PIECE
    cuts = expressions(content.get("pre_tokenizer"))
    assert cuts is not None, "asked after gguf_fault"
    merges = not content["model"].get("ignore_merges")
    return SAME_CUTS if NAMES[cuts] == TAKES_WHOLE and merges and _unmerged(content) else NAMES[cuts]


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
