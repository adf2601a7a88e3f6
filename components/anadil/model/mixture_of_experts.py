"""Recognize mixtures of experts by their config.json."""

from collections.abc import Mapping
from typing import Any

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
        "inkling2_loop_text",
        "inkling2_text",
        "inkling_text",
        "jamba",
        "jetmoe",
        "kimi_linear",
        "kolibri1",
        "laguna",
        "lara_mini",
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
"""Causal language models of transformers 5.24 whose code has experts: a config.json need not say a default count."""


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
