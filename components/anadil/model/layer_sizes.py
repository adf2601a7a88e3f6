"""Sizes of each layer, for types whose layers differ: the planner takes their mean, or counts each kind apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import DataError
from anadil.model.gguf_layers import FULL, SLIDING

LINEAR = "linear_attention"
ATTENDS = frozenset([FULL, "attention"])
FULL_INTERVAL = 4
"""Layers from one that attends to the next in Qwen 3.5 and OLMo Hybrid, where config.json does not say."""
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


def hybrid_layers(config: Mapping[str, Any], size: Callable[..., int]) -> tuple[LayerKind, ...]:
    """Return the kinds of layers of a type that mixes attention with convolutions or states.

    Args:
        config: Keys of config.json, with the type's defaults.
        size: Function of a key, and of a default, that returns a checked size.

    Raises:
        DataError: A kind of layer is not known.

    Source: transformers 5.24, `configuration_*.py` of lfm2, qwen3_5, qwen3_5_moe, olmo_hybrid and granitemoehybrid.
    """
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    sizes = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": size("num_key_value_heads", heads),
        "head": size("head_dim", max(1, hidden // heads)),
    }
    of_type, names = _OTHER_SIZES[str(config["model_type"])]
    sizes |= of_type(config, size)
    num = size("num_hidden_layers")
    kinds = [names.get(each, each) for each in _layer_types(config, num)]
    if unknown := set(kinds) - set(names.values()):
        raise DataError(
            f"config.json: layer_types has {min(unknown)!r}, and {config['model_type']} knows {' and '.join(sorted(names))}"
        )
    if len(kinds) != num:
        raise DataError(f"config.json: layer_types has {len(kinds)} layers, and num_hidden_layers is {num}")
    # Granite's table has its dense models and its mixtures, and the delta rule repeats keys where values have more heads.
    mixture = ", experts" if "space" in sizes and "experts" in sizes else ""
    equal = ", equal heads" if "value" in sizes and sizes["key_heads"] == sizes["value_heads"] else ""
    return tuple(
        LayerKind(
            name=kind + mixture + (equal if kind not in ATTENDS else ""),
            places=tuple(at for at, each in enumerate(kinds) if each == kind),
            attended=heads * sizes["head"] if kind in ATTENDS else 0,
            keys=sizes["kv_heads"] * sizes["head"] if kind in ATTENDS else 0,
            sizes=sizes,
        )
        for kind in sorted(set(kinds))
    )


def _layer_types(config: Mapping[str, Any], num: int) -> Sequence[str]:
    """Type of each layer, which configurations say in four ways."""
    for key in ("layer_types", "layers_block_type"):
        if config.get(key):
            listed: Sequence[str] = config[key]
            return listed
    if config["model_type"] == "lfm2":
        full = config.get("full_attn_idxs")
        return [FULL if full is None or at in full else "conv" for at in range(num)]
    if config["model_type"] == "granitemoehybrid":
        return ["mamba"] * num
    period = config.get("full_attention_interval") or FULL_INTERVAL
    return [LINEAR if (at + 1) % period else FULL for at in range(num)]


def _delta_sizes(config: Mapping[str, Any], size: Callable[..., int]) -> dict[str, int]:
    """Sizes of layers of the gated delta rule."""
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    key_heads = size("linear_num_key_heads", heads)
    key = size("linear_key_head_dim", max(1, int(0.75 * hidden / key_heads)))
    sizes = {
        "key_heads": key_heads,
        "key": key,
        "value_heads": size("linear_num_value_heads", heads),
        "value": size("linear_value_head_dim", 2 * key),
    }
    if config["model_type"] != "qwen3_5_moe_text":
        return sizes | {"mlp": size("intermediate_size")}
    return sizes | {
        "experts": size("num_experts"),
        "chosen": size("num_experts_per_tok"),
        "expert": size("moe_intermediate_size"),
        "shared": size("shared_expert_intermediate_size"),
    }


def _conv_sizes(config: Mapping[str, Any], size: Callable[..., int]) -> dict[str, int]:
    """Sizes of LFM2's layers; its MLP has two thirds of what config.json says, unless it says otherwise."""
    mlp = size("block_ff_dim", size("intermediate_size"))
    if config.get("block_auto_adjust_ff_dim", True):
        mlp = int(2 * mlp / 3)
        if (factor := config.get("block_ffn_dim_multiplier", 1.0)) is not None:
            multiple = size("block_multiple_of", 256)
            mlp = -(-int(factor * mlp) // multiple) * multiple
    return {"mlp": mlp}


def _space_sizes(config: Mapping[str, Any], size: Callable[..., int]) -> dict[str, int]:
    """Sizes of Granite 4's layers, whose MLP is the expert that every token meets."""
    space = size("mamba_n_heads", 128)
    experts = config.get("num_local_experts", 8)
    sizes = {
        "space": space,
        "space_head": size("mamba_expand", 2) * size("hidden_size") // space,
        "groups": size("mamba_n_groups", 1),
        "state": size("mamba_d_state", 256),
        "shared": size("shared_intermediate_size", 1_024),
    }
    if experts:
        of_one = {"chosen": size("num_experts_per_tok", 2), "expert": size("intermediate_size")}
        sizes |= of_one | {"experts": size("num_local_experts", 8)}
    return sizes


_DELTA_NAMES = {LINEAR: LINEAR, FULL: FULL}
_SPACE_NAMES = {"mamba": "mamba", LINEAR: "mamba", "attention": "attention", FULL: "attention"}
_OTHER_SIZES: Mapping[str, tuple[Callable[..., dict[str, int]], Mapping[str, str]]] = {
    "lfm2": (_conv_sizes, {"conv": "conv", FULL: FULL}),
    "qwen3_5_text": (_delta_sizes, _DELTA_NAMES),
    "qwen3_5_moe_text": (_delta_sizes, _DELTA_NAMES),
    "olmo_hybrid": (_delta_sizes, _DELTA_NAMES),
    "granitemoehybrid": (_space_sizes, _SPACE_NAMES),
}
"""Type -> its function of sizes, and names of layers as configurations say them -> rows of the table."""
