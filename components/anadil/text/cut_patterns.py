"""Patterns by which byte-level tokenizers cut a text before they merge."""

import re
from typing import Any

JsonObject = dict[str, Any]

LLAMA_3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Source: meta-llama/llama-models, models/llama3/tokenizer.py."""
QWEN_REGEX = LLAMA_3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
"""Source: Qwen/Qwen2.5-0.5B, tokenizer.json."""
QWEN_3_5_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's, with combining marks as parts of words. Source: Qwen/Qwen3.5-0.8B, tokenizer.json; llama.cpp, `qwen35`."""
GPT_2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Pattern of `ByteLevel` in the tokenizers library. Source: openai/gpt-2, src/encoder.py."""
KNOWN_PATTERNS = (LLAMA_3_REGEX, QWEN_REGEX, GPT_2_REGEX, QWEN_3_5_REGEX)
"""Those by which gigatoken and tokenizers cut alike round every code point, although their regular
expressions come from different libraries; `tests/text/test_encoder.py` tries them."""
NEW_LETTERS = re.compile(
    "[\u088f\u0c5c\u0cdc\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959\U00010ec5-\U00010ec7\U00011db0-\U00011ddb"
    "\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff"
    "\U00018d09-\U00018d1e\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6e2\U0001e6e4\U0001e6e5"
    "\U0001e6e7-\U0001e6ed\U0001e6f0-\U0001e6f4\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead"
    "\U000323b0-\U00033479\u1acf-\u1add\u1ae0-\u1aeb\U00011b60-\U00011b67]"
)
"""Letters, digits and marks of Unicode 17, which gigatoken knows and tokenizers does not; the same test found them."""
NEW_LEADS = (0xE0, 0xE1, 0xEA, 0xF0)
"""First bytes of them in UTF-8: a text without these is not searched."""
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
SYMBOLS = tuple(chr(byte) if byte in _PRINTABLE else chr(256 + _OTHERS.index(byte)) for byte in range(256))
"""Byte -> its symbol. Source: openai/gpt-2, src/encoder.py, `bytes_to_unicode`."""
ALPHABET = tuple(sorted(SYMBOLS))
"""All of them, as tokenizers and GPT-2 number them."""
_TO_SYMBOLS = dict(enumerate(SYMBOLS))
_TO_BYTES = {ord(symbol): byte for byte, symbol in enumerate(SYMBOLS)}
Merge = tuple[str, str]
"""Two tokens in byte symbols that become one."""


def known_pattern(pre_tokenizer: JsonObject | None) -> str | None:
    """The pattern of a pre-tokenizer that cuts by a known one and then writes byte symbols; else None."""
    *before, last = pre_tokenizer_parts(pre_tokenizer or {})
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not before:
        return GPT_2_REGEX if last.get("use_regex", True) else None
    split = before[0]
    pattern: str | None = split.get("pattern", {}).get("Regex")
    is_known = (
        len(before) == 1
        and not last.get("use_regex", True)
        and split.get("type") == "Split"
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
        and pattern in KNOWN_PATTERNS
    )
    return pattern if is_known else None


def cut_of_new_vocabulary(pre_tokenizer: JsonObject) -> JsonObject:
    """The pre-tokenizer for a vocabulary that is trained in a base's place: the base's own, but for GPT-2's pattern.

    GPT-2's makes a hyphen before a suffix and the end of a line after a sign tokens of their own; by Llama 3's they are
    one with their neighbour, which every later family has taken over. Digits stay single where the base has them so.
    """
    parts = pre_tokenizer_parts(pre_tokenizer)
    by_gpt_2 = [part for part in parts if part["type"] == "ByteLevel" and part.get("use_regex", True)]
    # A space that is put before a text would be put before every piece of it.
    if not by_gpt_2 or by_gpt_2[0]["add_prefix_space"]:
        return pre_tokenizer
    single = any(part["type"] == "Digits" and part["individual_digits"] for part in parts)
    return cut_by(QWEN_REGEX if single else LLAMA_3_REGEX)


def cut_by(pattern: str) -> JsonObject:
    """The pre-tokenizer that cuts by a pattern and then writes byte symbols, as the tokenizers library writes it."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, levels]}


def pre_tokenizer_parts(pre_tokenizer: JsonObject) -> list[JsonObject]:
    """The parts of a sequence, or the one that it is."""
    parts: list[JsonObject] = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return parts


def to_symbols(data: bytes) -> str:
    """Bytes in byte symbols."""
    return data.decode("latin-1").translate(_TO_SYMBOLS)


def to_bytes(symbols: str) -> bytes:
    """The bytes of a token or pretoken in byte symbols."""
    return symbols.translate(_TO_BYTES).encode("latin-1")


def to_text(symbols: str) -> str:
    """The text of a token or pretoken in byte symbols; U+FFFD where it is no UTF-8."""
    return to_bytes(symbols).decode(errors="replace")
