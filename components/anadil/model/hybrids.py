"""Types that mix attention with convolutions or states: the kinds of their layers, for the planner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anadil.core.errors import DataError
from anadil.model import gguf_layers
from anadil.model.family import Architecture, Gguf
from anadil.model.gguf_layers import FULL
from anadil.model.layer_sizes import LayerKind

LINEAR = "linear_attention"
ATTENDS = frozenset([FULL, "attention"])
FULL_INTERVAL = 4
"""Layers to an attention layer in Qwen 3.5 and OLMo Hybrid, where config.json does not say."""


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
        if not isinstance(full, list | None):
            raise DataError(f"config.json: full_attn_idxs is {full!r}, not a list of layers")
        return [FULL if full is None or at in full else "conv" for at in range(num)]
    if config["model_type"] == "granitemoehybrid":
        return ["mamba"] * num
    period = config.get("full_attention_interval") or FULL_INTERVAL
    kinds = [LINEAR if (at + 1) % period else FULL for at in range(num)]
    if config["model_type"] == "olmo_hybrid" and num < period:  # which has one that attends
        kinds[-1] = FULL
    return kinds


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
            if not isinstance(factor, int | float):
                raise DataError(f"config.json: block_ffn_dim_multiplier is {factor!r}, not a number")
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

QWEN_3_5 = Architecture(
    norm="centred",
    layer_kinds=hybrid_layers,
    only={
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
    },
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
)
_EXPERTS = {
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
QWEN_3_5_MIXTURE = replace(QWEN_3_5, defaults={**QWEN_3_5.defaults, **_EXPERTS})
OLMO_HYBRID = Architecture(
    layer_kinds=hybrid_layers,
    only={"linear_conv_kernel_dim": 4, "hidden_act": "silu", "attention_bias": False},
)
# Granite 4: layers of Mamba 2 and a few of attention, dense or with experts.
GRANITE_HYBRID = Architecture(
    layer_kinds=hybrid_layers,
    only={
        "mamba_chunk_size": 256,
        "mamba_d_conv": 4,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "attention_bias": False,
    },
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1_024},
)
LFM2 = Architecture(
    layer_kinds=hybrid_layers,
    only={"conv_bias": False, "conv_L_cache": 3},
    defaults={"num_key_value_heads": 8, "tie_word_embeddings": True},
)
LFM2_GGUF = Gguf(
    architecture="lfm2",
    own_head_size=False,
    fixed={"conv_bias": False},
    fault=gguf_layers.lfm2_fault,
    numbers={"attention.layer_norm_rms_epsilon": "norm_eps"},
    kinds=frozenset(["conv", "full_attention"]),
    counts={
        "shortconv.l_cache": "conv_L_cache",
        "attention.head_count_kv": gguf_layers.heads_by_layer,
    },
)
QWEN_3_5_GGUF = Gguf(
    architecture="qwen35",
    norm_offset=1.0,
    partial=True,
    kinds=frozenset(["linear_attention", "full_attention"]),
    fault=gguf_layers.qwen_3_5_fault,
    value_heads=(
        "attn_qkv", "attn_gate", "ssm_conv1d", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt", "ssm_out"
    ),
    fixed={"hidden_act": "silu", "attention_bias": False},
    counts={
        "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.inner_size": lambda config: config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": gguf_layers.layer_period, "rope.dimension_sections": gguf_layers.sections,
    },
)  # fmt: skip
