"""Model types that each layout of training is proven for: the one list that engine, planner, doctor and export ask.

A transformers architecture may scale embeddings, keep constants in buffers, or compute outside of its layers. A
layout that bypasses one of these trains a wrong model without a sign of it, so a type stands here only after its
losses and gradients in that layout were compared with plain transformers (tests/pretrain/parallel/test_families.py).
Nothing here imports torch: the planner is instant.
"""

from collections.abc import Mapping
from typing import Any

from anadil.core.errors import PreflightError

LLAMA_LAYERS = frozenset(
    [
        "cwm",
        "ernie4_5",
        "granite",
        "helium",
        "llama",
        "ministral",
        "ministral3",
        "mistral",
        "qwen2",
        "seed_oss",
        "smollm3",
    ]
)
"""Layers of what `pretrain/parallel/tensor.py` splits, and of nothing else."""
LLAMA_FORWARD = frozenset(
    [
        "apertus",
        "arcee",
        "ernie4_5",
        "glm",
        "glm4",
        "helium",
        "llama",
        "mistral",
        "olmo",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "seed_oss",
        "starcoder2",
    ]
)
"""Forward passes that do no more than a pipeline's stages: embed, layers with one rotation, norm."""
LLAMA_NAMES = (
    LLAMA_LAYERS
    | LLAMA_FORWARD
    | frozenset(["exaone4", "gemma", "gemma3_text", "hunyuan_v1_dense", "hyperclovax", "jais2", "olmo3"])
)
"""Embeddings, layers and head under the names by which weights are read piece by piece."""
PROVEN: Mapping[str, frozenset[str]] = {
    "alone": LLAMA_NAMES | {"diffllama", "gpt_neox", "persimmon"},
    "shard": LLAMA_NAMES,
    "context": LLAMA_NAMES,
    "tensor": LLAMA_LAYERS,
    "pipeline": LLAMA_FORWARD,
}
"""Layout (`alone`, also with copies, or the key of `pretrain.parallelism`) -> `model_type` of config.json."""
LAYOUTS = ("shard", "context", "tensor", "pipeline")
EXPERT_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_routed_experts",
)
"""Keys of config.json that mixture-of-experts models count their experts by."""
EXPERT_SWITCHES = ("is_moe", "enable_moe_block")
"""Keys that say whether experts are made at all, where one type has models of both kinds."""
MIXTURES = frozenset(
    [
        "afmoe",
        "aria_text",
        "axk1",
        "axk2",
        "bailing_hybrid",
        "beam",
        "cohere2_moe",
        "dbrx",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots1",
        "dots3_note",
        "dots3_note_text",
        "ernie4_5_moe",
        "exaone_moe",
        "flex_olmo",
        "flint",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gpt_oss",
        "granitemoe",
        "granitemoe_swa",
        "granitemoehybrid",
        "granitemoeshared",
        "hunyuan_v1_moe",
        "hy_v3",
        "hy_v4",
        "inkling2_text",
        "inkling_text",
        "jamba",
        "jetmoe",
        "kimi_linear",
        "kolibri1",
        "laguna",
        "lfm2_moe",
        "llama4",
        "llama4_text",
        "longcat_flash",
        "mellum",
        "mimo_v2_flash",
        "minimax",
        "minimax_m2",
        "minimax_m3_vl_text",
        "mixtral",
        "nemotron_h",
        "olmoe",
        "phimoe",
        "qwen2_moe",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "solar_open",
        "zaya",
    ]
)
"""Causal language models of transformers 5.23 whose code has experts: a config.json need not say a default count."""


def is_mixture_of_experts(config: Mapping[str, Any]) -> bool:
    """Whether the content of a config.json, or of a section in it such as `text_config`, describes a mixture of experts."""
    if any(is_mixture_of_experts(section) for section in config.values() if isinstance(section, Mapping)):
        return True
    if any(config.get(key) is False for key in EXPERT_SWITCHES):
        return False
    counts = [count for key in EXPERT_COUNTS for count in _numbers(config.get(key))]
    if max(counts, default=0) > 1:
        return True
    return str(config.get("model_type")) in MIXTURES and max(counts, default=1) > 0


def _numbers(value: object) -> list[int]:
    """The counts that a key holds: one, one for each layer, or none."""
    return [count for count in (value if isinstance(value, list) else [value]) if isinstance(count, int)]


def refuse_mixture(config: Mapping[str, Any], name: str = "base.model") -> None:
    """Refuse a mixture of experts by its name, before anything is loaded.

    Args:
        config: Content of the model's config.json.
        name: Recipe key or path of the model, for the message.

    Raises:
        PreflightError: It is one.
    """
    if is_mixture_of_experts(config):
        raise PreflightError(
            f"{name}: model type {_type(config)} is a mixture of experts, which is not supported; "
            f"take a dense model ({_listed('alone')})"
        )


def check_family(config: Mapping[str, Any], degrees: Mapping[str, int], name: str = "base.model") -> None:
    """Refuse a model type that a layout is not proven for, before anything is loaded.

    Args:
        config: Content of the model's config.json.
        degrees: Such as `shard`, `tensor`, `context`, `pipeline` -> processes; other keys are not looked at.
        name: Recipe key or path of the model, for the message.

    Raises:
        PreflightError: With the type, the layout, the types that it is proven for, and what to set instead.
    """
    refuse_mixture(config, name)
    kind = str(config.get("model_type"))
    if kind not in PROVEN["alone"]:
        raise PreflightError(
            f"{name}: model type {_type(config)} is not proven to train as transformers trains it; take one of "
            f"{_listed('alone')}"
        )
    for layout in LAYOUTS:
        degree = degrees.get(layout, 1)
        if degree > 1 and kind not in PROVEN[layout]:
            raise PreflightError(
                f"pretrain.parallelism.{layout}: {degree} is not proven for the model type {_type(config)} of {name}, "
                f"only for {_listed(layout)}; set it to 1{_instead(kind, layout)}"
            )


def _type(config: Mapping[str, Any]) -> str:
    return repr(config["model_type"]) if config.get("model_type") else "(config.json names none)"


def _listed(layout: str) -> str:
    return ", ".join(sorted(PROVEN[layout]))


def _instead(kind: str, layout: str) -> str:
    """A layout that does take the type."""
    return ", and share the model with shard" if layout != "shard" and kind in PROVEN["shard"] else ""
