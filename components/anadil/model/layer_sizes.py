"""Sizes of each layer, for types whose layers differ: the planner takes their mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anadil.model.gguf_layers import FULL, SLIDING

PERIOD = 6
"""Gemma 4's layers from one that sees all to the next, where config.json lists none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """Sizes of one layer."""

    head_dim: int
    kv_heads: int
    """Heads of keys. 0: the layer takes keys and values of an earlier one."""
    has_values: bool
    """True if a matrix makes values, which otherwise are keys before their norm."""
    intermediate: int
    """Width of the MLP."""


def gemma_4(config: Mapping[str, Any]) -> tuple[LayerSizes, ...]:
    """Return the sizes of each of Gemma 4's layers.

    Source: transformers 5.24, models/gemma4/configuration_gemma4.py and modeling_gemma4.py.
    """
    num = config["num_hidden_layers"]
    kinds = config.get("layer_types") or [FULL if (at + 1) % PERIOD == 0 else SLIDING for at in range(num)]
    shared = config.get("num_kv_shared_layers") or 0
    keys_as_values = config.get("attention_k_eq_v") or False
    kv_heads = config["num_key_value_heads"]
    of_full = (config.get("num_global_key_value_heads") or kv_heads) if keys_as_values else kv_heads
    sizes = []
    for at, kind in enumerate(kinds):
        is_full = kind == FULL or at == num - 1
        is_shared = at >= num - shared
        wide = 2 if is_shared and config.get("use_double_wide_mlp") else 1
        sizes.append(
            LayerSizes(
                head_dim=config.get("global_head_dim", 512) if is_full else config["head_dim"],
                kv_heads=0 if is_shared else of_full if is_full else kv_heads,
                has_values=not (is_full and keys_as_values),
                intermediate=wide * config["intermediate_size"],
            )
        )
    return tuple(sizes)
