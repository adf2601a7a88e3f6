"""Bases that write what a test wants: random layers, and a bias that makes some tokens likelier than all others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PhiConfig, PhiForCausalLM

from anadil.artifacts.base_model import base_tokenizer
from anadil.model.load import load_tokenizer, save_model
from anadil.recipe.sections import Base

WORDS = ("the", "Ġvalue", "Ġof", "Ġan", "Ġobject", "Ġis", "Ġname", ".", "Ġfunction", "Ġin")
TALKS = dict.fromkeys(WORDS, 11.0) | {"<|eot_id|>": 11.2}
"""English words in any order; a text ends after some nine of them, also where the likeliest tokens alone are drawn."""


def writing_base(folder: Path, likely: Mapping[str, float] = TALKS) -> Path:
    """Make a Hugging Face directory with the tokenizer of `tiny`, of a Phi: its head alone has a bias."""
    tokenizer_dir = base_tokenizer(Base(model="tiny"), folder.parent / "tokenizers")
    tokenizer: Any = load_tokenizer(tokenizer_dir)
    torch.manual_seed(0)
    config = PhiConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256,
    )  # fmt: skip
    model: Any = PhiForCausalLM(config)
    with torch.no_grad():
        for token, value in likely.items():
            model.lm_head.bias[tokenizer.convert_tokens_to_ids(token)] = value
    save_model(model, tokenizer_dir, folder, torch.float32)
    return folder
