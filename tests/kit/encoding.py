"""Texts that are hard to encode, an encoder that errs, and what the tokenizers library makes of them."""

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

ODD = (
    "",
    " ",
    "  iki boşluq  qalır ",
    "\n\n  sətir\n başı\t\tsəhifə \n",
    "Bakı'nın don't I'LL '\u017f 123456 12 3 4,5 .\n\nYeni  abzas",
    "sıfır\0bayt \0 və \x1c ayırıcı",
    "nbsp\u00a0 və\u00a0\u2003enli \u180e boşluq",
    "<|eot_id|> mətn <|begin_of_text|> kimi",
    "日本語の文。 空白 なし",
    "e\u0301 \u0301 \U0001f600 son",
    "\ufdd0anadil kimi <tool> <to ol>",
    "ab" * 3_000,
)


def exactly(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """What tokenizers gives, asked in its own words."""
    other = Tokenizer.from_str(tokenizer.to_str())
    other.encode_special_tokens = True
    return [other.encode(text, add_special_tokens=False).ids for text in texts]


def lists(found: Sequence[Any]) -> list[list[int]]:
    assert all(ids.dtype == np.int32 for ids in found)
    return [ids.tolist() for ids in found]


def random_texts(num: int) -> list[str]:
    """Strings of all planes: letters, marks, blanks, controls, private use, what nobody has assigned."""
    chance = random.Random(16)
    common = "aəıİ 1'sŞ\n\r\t.,!語かﷺ\u0301\u00a0\u3000\u2028٣\U0001f600"

    def letter() -> str:
        if chance.random() < 0.5:
            return chance.choice(common)
        while (
            0xD800
            <= (point := chance.choice((0x3000, 0x11000, 0x32000, sys.maxunicode + 1)) * chance.random())
            < 0xE000
        ):
            pass
        return chr(int(point))

    return ["".join(letter() for _ in range(chance.randrange(1, 40))) for _ in range(num)]


class Unlike:
    """A gigatoken that gives other ids for each text with `xabc`."""

    def __init__(self, gigatoken: Any) -> None:
        self.gigatoken = gigatoken

    def encode(self, utf8: bytes) -> Any:
        ids = self.gigatoken.encode(utf8)
        return ids[::-1] if b"xabc" in utf8 else ids
