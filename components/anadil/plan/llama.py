"""A shape as transformers' configuration of a Llama."""

from typing import Any

from transformers import LlamaConfig

from anadil.plan.shape import Shape


def llama_config(shape: Shape, sequence_length: int) -> LlamaConfig:
    """The configuration of a model with these sizes, without a cache.

    Args:
        shape: Sizes.
        sequence_length: Tokens of the longest input.
    """
    settings: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max(2_048, sequence_length),
        "tie_word_embeddings": shape.tied,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }
    return LlamaConfig(**settings)
