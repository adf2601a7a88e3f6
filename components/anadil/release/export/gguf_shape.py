"""Architectures that llama.cpp computes as transformers does, by config.json; checked by export and before training."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from anadil.model.family import Gguf
from anadil.model.family_table import families

SLIDING, FULL = "sliding_attention", "full_attention"
"""transformers' kinds of layers."""
YARN_KEYS = ("mscale", "mscale_all_dim", "truncate")
"""Settings of YaRN that GGUF does not hold."""
ROTATED_LAYERS = 4
"""Period of layers whose last one is not rotated. Source: llama.cpp, src/models/smollm3.cpp, `n_no_rope_layer_step`."""


def gguf_family(config: PreTrainedConfig) -> Gguf | None:
    """llama.cpp's settings for the model's type; None if it is not exported."""
    family = families().get(config.model_type)
    return family.gguf if family else None


def shape_fault(config: PreTrainedConfig) -> str:
    """Reason why llama.cpp cannot compute a model; empty if it can."""
    kind = gguf_family(config)
    if kind is None:
        types = ", ".join(sorted(name for name, each in families().items() if each.gguf))
        return f"model type {config.model_type!r} is not written as GGUF, only {types}"
    for key, value in kind.fixed.items():
        if (actual := getattr(config, key, value)) != value:
            return f"{key} is {actual!r}, and llama.cpp's {kind.architecture} computes {value!r}"
    if not kind.own_head_size and head_size(config) * config.num_attention_heads != config.hidden_size:
        return f"head_dim is {head_size(config)}, and llama.cpp's {kind.architecture} has only hidden size / heads"
    return _rotation_fault(config, kind) or _window_fault(config, kind)


def _rotation_fault(config: PreTrainedConfig, kind: Gguf) -> str:
    scaling = rotation(config)
    rotates = scaling["rope_type"]
    if rotates not in kind.scalings:
        return f"rotation scaled by {rotates!r} is not written as GGUF for it, only {', '.join(sorted(kind.scalings))}"
    if rotates == "yarn":
        usual = 0.1 * math.log(scaling["factor"]) + 1  # of the paper, arXiv:2309.00071, section 3.4
        others = [key for key in YARN_KEYS if scaling.get(key) is not None]
        if others or not math.isclose(scaling.get("attention_factor") or usual, usual, rel_tol=1e-6):
            return f"rotation scaled by 'yarn' with {', '.join(others) or 'attention_factor'}, which GGUF does not hold"
    layers = range(config.num_hidden_layers)
    rotated = getattr(config, "no_rope_layers", None)  # 0 is a layer without, whatever the name says
    if rotated and rotated != [int((layer + 1) % ROTATED_LAYERS > 0) for layer in layers]:
        return f"llama.cpp's {kind.architecture} rotates three of four layers"
    return ""


def _window_fault(config: PreTrainedConfig, kind: Gguf) -> str:
    if kind.windows == "none" or SLIDING not in layer_types(config):
        return ""
    if window_period(config) is None:
        return "layers with and without a window do not alternate by one number"
    if local := config.rope_parameters.get(SLIDING):
        if local["rope_type"] != "default":
            return f"the rotation of layers with a window is scaled by {local['rope_type']!r}"
        if kind.windows == "same_base" and local["rope_theta"] != rotation(config)["rope_theta"]:
            return (
                f"layers with a window have a base of their own, and llama.cpp's {kind.architecture} has one"
            )
    return ""


def layer_types(config: PreTrainedConfig) -> list[str]:
    """Kind of each layer."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    return types or [SLIDING if window else FULL] * config.num_hidden_layers


def window_period(config: PreTrainedConfig) -> int | None:
    """Period of layers whose last one sees all; None without such a period."""
    types = layer_types(config)
    period = types.index(FULL) + 1 if FULL in types else len(types) + 1
    regular = [SLIDING if (layer + 1) % period else FULL for layer in range(len(types))]
    return period if types == regular else None


def context_length(config: PreTrainedConfig, kind: Gguf) -> int:
    """Tokens that llama.cpp computes as transformers does; those of a window if it knows no windows."""
    longest = int(config.max_position_embeddings)
    knows = kind.windows != "none" or SLIDING not in layer_types(config)
    return longest if knows else min(longest, int(config.sliding_window))


def rotation(config: PreTrainedConfig) -> Mapping[str, Any]:
    """Base and scaling of the rotation; of layers that see all if there are two."""
    written: Mapping[str, Any] = config.rope_parameters
    return written.get(FULL, written)  # type: ignore[no-any-return]


def key_value_heads(config: PreTrainedConfig) -> int:
    """Heads of keys and values."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_size(config: PreTrainedConfig) -> int:
    """Numbers of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
