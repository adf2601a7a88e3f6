"""A random model of Llama 3.2's shape with a tokenizer of Llama 3's kind, and texts of many scripts."""

import json
import random
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from anadil.artifacts.base_model import BEGIN, CHAT_TEMPLATE, END, PAD, _train_tiny
from anadil.model.load import save_model
from tests.kit.llama import small_llama
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

SCALED: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Source: meta-llama/Llama-3.2-1B, config.json."""
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
    "rope_parameters": SCALED,
}
SCRIPTS = (
    *PRETRAINING_TEXTS,
    "The quick brown fox can't jump; they'll say it's OVER 9000, WE'VE SEEN 12345678 times.",
    "東京は日本の首都です。１２３４５円、カタカナとひらがな。",
    "Москва — столица России; съешь ещё этих мягких французских булок.",
    "القاهرة عاصمة مصر، وعدد سكانها ١٢٣٤٥٦٧٨ نسمة.",
    "हिन्दी में लिखा हुआ एक वाक्य, जिसमें १२३४ अंक हैं।",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓๔",
    "한국어 문장입니다. ㄱㄴㄷ, 각각 다른 글자.",
    "ქართული ენა; ᲥᲐᲠᲗᲣᲚᲘ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇦🇿🇯🇵 👍🏽 ❤️ ☕️ 1️⃣ \U0001fae8",
    "İstanbul'da IŞIK ığdır; ŞƏKİ'nin küçələri 'S 'll 'RE ſ'ſ K'K",
    "e\u0301a\u0308 \u200b\u200d\ufeff\u00a0\u3000\u2028\u0085 \t\t  \r\n\r\n  \n \x00\x1b\x7f",
    "<|begin_of_text|><|eot_id|> <|start_header_id|>user<|end_header_id|>\n\n[INST] </s> <0x0A> ▁ Ġ Ċ",
    "½ ² Ⅷ ㊿ 𝟘𝟙 𝒜𝒷 ⑦ ªº ǅ ʰ ´`^~ ··· ––– ''' \"\"\" ... !!!\n\n???\n",
    "\ue000\U000f0000\U0010ffff\ufffd\u0378\U0001f9ff",
)
"""Sentences of many scripts, and what tokenizers stumble over."""
UNICODE_16 = re.compile(
    "[\u1c89\u1c8a\ua7cb-\ua7cd\ua7da-\ua7dc\U000105c0-\U000105f3\U00010d40-\U00010d85\U00010ec2-\U00010ec4"
    "\U00011380-\U000113d3\U000116d0-\U000116e3\U00011bc0-\U00011bf9\U00013460-\U000143fa\U00016100-\U00016139"
    "\U00016d40-\U00016d79\U00018cff\U0001ccf0-\U0001ccf9\U0001e5d0-\U0001e5fa]"
)
"""Letters and digits that came with Unicode 16, which llama.cpp takes for signs: every code point was tried."""


def make_llama_3(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A Hugging Face directory as this program writes it; `changes` are keys of config.json."""
    tokenizer = make_tokenizer(folder.with_name(f"{folder.name}-tokenizer"))
    size = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    shape = {**SHAPE, "vocab_size": size, **changes}
    save_model(small_llama(seed=3, **shape), tokenizer, folder, dtype)
    return folder


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer directory: Llama 3's expression, control tokens and template, and few merges."""
    folder.mkdir(parents=True, exist_ok=True)
    _train_tiny("\n".join(SCRIPTS[: len(PRETRAINING_TEXTS) + 8])).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / CHAT_TEMPLATE.name).write_text(CHAT_TEMPLATE.read_text(encoding="utf-8"))
    return folder


def mixed_documents(number: int, seed: int = 7) -> list[str]:
    """Documents put together from parts of sentences of all scripts, emoji, blanks and any code points."""
    draw = random.Random(seed)
    documents = []
    for _ in range(number):
        parts = []
        for _ in range(draw.randint(1, 12)):
            text = draw.choice(SCRIPTS)
            start = draw.randrange(len(text))
            parts.append(text[start : start + draw.randint(1, 60)])
            parts.append(draw.choice(["", " ", "  ", "\n", "\r\n", " \n\t ", "\u3000", *map(str, (7, 2026))]))
            if draw.random() < 0.3:
                parts.append("".join(any_character(draw) for _ in range(draw.randint(1, 6))))
        documents.append("".join(parts))
    return documents


def any_character(draw: random.Random) -> str:
    """A code point, half of them below U+3000; no half of a surrogate pair."""
    point = draw.randrange(0x3000) if draw.random() < 0.5 else draw.randrange(0x110000)
    return "x" if 0xD800 <= point < 0xE000 or UNICODE_16.match(chr(point)) else chr(point)
