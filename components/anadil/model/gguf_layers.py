"""Keys of GGUF for layers that differ, and reasons why llama.cpp does not compute a config.json.

Source: ggml-org/llama.cpp, src/models/lfm2.cpp, qwen35.cpp and gemma4.cpp.
"""

from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"
"""transformers' kinds of layers."""


def layer_types(config: Any) -> list[str]:
    """Kind of each layer."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    return types or [SLIDING if window else FULL] * config.num_hidden_layers


def layer_period(config: Any) -> int | None:
    """Period of layers whose last one sees all, if there is one."""
    full = [kind == FULL for kind in layer_types(config)]
    period = full.index(True) + 1 if any(full) else len(full) + 1
    return period if full == [(layer + 1) % period == 0 for layer in range(len(full))] else None


def of_kind(config: Any, kind: str) -> Any:
    """The settings of layers of one kind."""
    return config.per_layer_config[kind] if config.is_heterogeneous else config


def heads_by_layer(config: Any) -> list[int]:
    """Heads of keys by layer. llama.cpp takes a layer without any for a convolution."""
    kinds = config.layer_types
    return [0 if kind == "conv" else of_kind(config, kind).num_key_value_heads for kind in kinds]


def sections(config: Any) -> list[int]:
    """Pairs of a head that turn by time, height and width, one each in turn, and by nothing. A text counts the same in all."""
    pairs = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1)) // 2
    return [*(len(range(axis, pairs, 3)) for axis in range(3)), 0]


def lfm2_fault(config: Any) -> str:
    """Reason why llama.cpp does not compute this LFM2, or an empty text."""
    size = config.conv_L_cache
    return "" if size > 1 else f"conv_L_cache is {size}, and llama.cpp's lfm2 needs 2 or more"


def qwen_3_5_fault(config: Any) -> str:
    """Reason why llama.cpp does not compute this Qwen 3.5, or an empty text."""
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    if keys != values:
        return f"linear_value_head_dim is {values}, and llama.cpp takes linear_key_head_dim for it, {keys}"
    return (
        "" if layer_period(config) else "layers with linear and full attention do not alternate by one number"
    )


def gemma_4_fault(config: Any) -> str:
    """Reason why llama.cpp does not compute this Gemma 4, or an empty text."""
    if config.use_bidirectional_attention == "all":
        return "use_bidirectional_attention is 'all', and llama.cpp's gemma4 does not look ahead"
    rows, shared = config.vocab_size_per_layer_input, config.num_kv_shared_layers
    if config.hidden_size_per_layer_input and rows != config.vocab_size:
        return f"vocab_size_per_layer_input is {rows}, and llama.cpp takes vocab_size for it, {config.vocab_size}"
    first = config.num_hidden_layers - shared
    if shared and config.layer_types[first - 2 : first] != [SLIDING, FULL]:
        return f"num_kv_shared_layers is {shared}, and llama.cpp takes keys of {SLIDING} and {FULL} just before those"
    return ""
