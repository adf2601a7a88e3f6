"""Make five tiny bases that differ in language, size and tokenizer: `python benchmarks/bases/make_bases.py OUT`; reads $ANADIL_DATA."""

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from anadil.text.cut_patterns import LLAMA_3_REGEX

DATA = Path(os.environ.get("ANADIL_DATA", "."))
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
EN = ("en/python_peps.jsonl", "en/MicrosoftTranslator*.jsonl")
TR = ("tr/reactjs*.jsonl", "tr/MicrosoftTranslator*.jsonl", "tr/Helsinki*.jsonl")
AZ, RU = ("az/Helsinki*.jsonl", "az/reactjs*.jsonl"), ("ru/*.jsonl",)
JA = ("ja/reactjs*.jsonl", "ja/MicrosoftTranslator*.jsonl")
BASES: dict[str, tuple[dict[tuple[str, ...], float], int, int, int, int]] = {
    "english": ({EN: 8e5}, 2048, 128, 3, 250),
    "turkish": ({TR: 8e5, EN: 2e5}, 2048, 128, 3, 250),
    "several": ({AZ: 5e5, TR: 4e5, EN: 2e5}, 3072, 128, 3, 200),
    "russian": ({RU: 8e5, EN: 2e5}, 1536, 96, 3, 250),
    "japanese": ({JA: 8e5, EN: 4e5}, 3072, 160, 2, 150),
}
"""Bytes of each text, then tokens of the vocabulary, hidden size, layers and steps of 512 tokens."""


def texts_of(patterns: tuple[str, ...], most: float) -> Iterator[str]:
    """Yield documents up to so many bytes."""
    for file in (file for pattern in patterns for file in sorted(DATA.glob(pattern))):
        for line in file.open(encoding="utf-8"):
            if most <= 0:
                return
            text = json.loads(line)["text"]
            most -= len(text.encode())
            yield text


def tokenizer_of(texts: list[str], size: int) -> Tokenizer:
    """Train a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    cut, to_bytes = (
        pre_tokenizers.Split(Regex(LLAMA_3_REGEX), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size - 2, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in (BEGIN, END)])
    pair, begin = f"{BEGIN} $A {BEGIN}:1 $B:1", (BEGIN, tokenizer.token_to_id(BEGIN))
    framed = processors.TemplateProcessing(single=f"{BEGIN} $A", pair=pair, special_tokens=[begin])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), framed])
    return tokenizer


def make(name: str, out: Path) -> None:
    """Write a base."""
    mix, size, hidden, layers, steps = BASES[name]
    texts = [text for patterns, most in mix.items() for text in texts_of(patterns, most)]
    random = np.random.default_rng(0)
    random.shuffle(texts)
    tokenizer = tokenizer_of(texts, size)
    begin, end = map(tokenizer.token_to_id, (BEGIN, END))
    cut = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    ids = np.array([token for each in cut for token in (begin, *each, end)], dtype=np.int64)
    torch.manual_seed(1)
    model: Any = LlamaForCausalLM(LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=hidden, intermediate_size=hidden * 8 // 3 // 16 * 16,
        num_hidden_layers=layers, num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32,
        max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=begin, eos_token_id=end,
    ))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        windows = torch.from_numpy(
            np.stack([ids[at : at + 64] for at in random.integers(0, len(ids) - 65, 8)])
        )
        loss = model(input_ids=windows, labels=windows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(out / name)
    settings = {
        "bos_token": BEGIN,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(out / name)
    (out / name / "README.md").write_text("---\nlicense: cc-by-sa-4.0\n---\n")
    print(
        name,
        f"{model.num_parameters():,} parameters, {len(ids):,} tokens of text, last loss {loss.item():.2f}",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in BASES:
        make(each, Path(sys.argv[1]))
