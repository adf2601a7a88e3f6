"""Sizes of each layer, for types whose layers differ: the planner takes their mean, or counts each kind apart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import DataError
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


def gemma_4(config: Mapping[str, Any], size: Callable[..., int]) -> tuple[LayerSizes, ...]:
    """Return the sizes of each of Gemma 4's layers.

    Args:
        config: Keys of config.json, with the type's defaults. transformers writes `per_layer_config`, of layers by number, in
            place of `global_head_dim` and `num_global_key_value_heads`.
        size: Function of a key, and of a default, that returns a checked size.

    Raises:
        DataError: A kind of layer is not known.

    Source: transformers 5.24, models/gemma4/configuration_gemma4.py and modeling_gemma4.py.
    """
    num, kv_heads = size("num_hidden_layers"), size("num_key_value_heads")
    kinds = config.get("layer_types") or [FULL if (at + 1) % PERIOD == 0 else SLIDING for at in range(num)]
    if unknown := set(kinds) - {FULL, SLIDING}:
        raise DataError(
            f"config.json: layer_types has {min(unknown)!r}, and Gemma 4 knows {FULL} and {SLIDING}"
        )
    keys_as_values = bool(config.get("attention_k_eq_v"))
    of_full = size("num_global_key_value_heads", kv_heads) if keys_as_values else kv_heads
    written = {int(at): each for at, each in (config.get("per_layer_config") or {}).items()}
    sizes = []
    for at, kind in enumerate(kinds):
        is_full, is_shared = (
            kind == FULL or at == num - 1,
            at >= num - (config.get("num_kv_shared_layers") or 0),
        )
        full = {"head_dim": size("global_head_dim", 512), "num_key_value_heads": of_full} if is_full else {}
        layer = {"head_dim": size("head_dim"), "num_key_value_heads": kv_heads} | full | written.get(at, {})
        wide = 2 if is_shared and config.get("use_double_wide_mlp") else 1
        sizes.append(
            LayerSizes(
                head_dim=layer["head_dim"],
                kv_heads=0 if is_shared else layer["num_key_value_heads"],
                has_values=not (is_full and keys_as_values),
                intermediate=wide * size("intermediate_size"),
            )
        )
    return tuple(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers of one kind."""

    name: str
    """Row of `estimate/layer_memory.json`."""
    places: tuple[int, ...]
    """Its layers, from 0."""
    attended: int
    """Width of all queries that attend. 0: the layer looks back by a convolution or a state."""
    keys: int
    """Width of all keys of attention."""
    sizes: Mapping[str, int] = field(hash=False)
    """Sizes by the names of this file, as `key_heads`."""
