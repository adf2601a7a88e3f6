"""A shape as transformers' configuration of a model of its type."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from anadil.plan.model_shape import Shape


def config_of(shape: Shape, sequence_length: int) -> PreTrainedConfig:
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
        "attention_bias": shape.attention_bias,
        "use_cache": False,
        # Sizes decide memory; a window or a row for padding would only be in the way.
        "sliding_window": None,
        "pad_token_id": None,
        "attn_implementation": "sdpa",
    }
    if shape.mlp_bias:
        settings["mlp_bias"] = True
    if shape.rotary_share != 1:
        settings["partial_rotary_factor"] = shape.rotary_share
    config: PreTrainedConfig = AutoConfig.for_model(shape.model_type, **settings)
    return config
