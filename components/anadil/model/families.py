"""Model types that each layout of training is proven for: the one list that engine, planner, doctor and export ask.

A transformers architecture may scale embeddings, keep constants in buffers, or compute outside of its layers. A
layout that bypasses one of these trains a wrong model without a sign of it, so a type stands here only after its
losses and gradients in that layout were compared with plain transformers (tests/pretrain/test_layouts.py).
Nothing here imports torch: the planner is instant.
"""

from collections.abc import Mapping
from typing import Any

from anadil.errors import PreflightError

DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3", "olmo2", "glm4"})
PROVEN: Mapping[str, frozenset[str]] = {
    "alone": DENSE,
    "shard": DENSE,
    "tensor": DENSE,
    "context": DENSE,
    "pipeline": DENSE,
}
"""Layout (`alone`, or the key of `pretrain.parallelism`) -> `model_type` of config.json."""
EXPERT_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_routed_experts",
)
"""Keys of config.json that mixture-of-experts models count their experts by."""


def is_mixture_of_experts(config: Mapping[str, Any]) -> bool:
    """Whether the content of a config.json describes a mixture of experts."""
    return any(isinstance(config.get(key), int) and config[key] > 1 for key in EXPERT_COUNTS)


def check_family(config: Mapping[str, Any], degrees: Mapping[str, int]) -> None:
    """Refuse a model type that a layout is not proven for, before anything is loaded.

    Args:
        config: Content of the base model's config.json.
        degrees: `shard`, `tensor`, `context`, `pipeline` -> processes.

    Raises:
        PreflightError: With the type, the layout, the types that it is proven for, and what to set instead.
    """
    kind = str(config.get("model_type", ""))
    if is_mixture_of_experts(config):
        raise PreflightError(
            f"base.model: {kind} is a mixture of experts, which is not supported; "
            f"take a dense model ({', '.join(sorted(PROVEN['alone']))})"
        )
    for layout in ("alone", *(name for name in degrees if degrees[name] > 1)):
        proven = PROVEN[layout]
        if kind in proven:
            continue
        if layout == "alone":
            raise PreflightError(
                f"base.model: model type {kind!r} is not one of {', '.join(sorted(proven))}; take one of these"
            )
        raise PreflightError(
            f"pretrain.parallelism.{layout}: {degrees[layout]} is not proven for the model type {kind!r}, only for "
            f"{', '.join(sorted(proven))}; set it to 1"
        )
