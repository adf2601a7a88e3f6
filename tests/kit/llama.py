"""A small random Llama, the same wherever it is made."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def small_llama(*, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """In evaluation mode; `changes` are keys of config.json."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()
