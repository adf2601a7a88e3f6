"""Model families that are trained, and the refusal of all others by name, before anything is loaded.

A transformers architecture may scale embeddings, hold constants in buffers, or compute outside of its layers. A
layout that bypasses one of these trains a wrong model without a sign of it. So a type stands in `FAMILIES` with a
layout only after its losses and gradients there were compared with plain transformers.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, get_args

from anadil.artifacts.text_part import refuse_other_class
from anadil.core.errors import PreflightError
from anadil.model.families import FAMILIES
from anadil.model.family import Family, LayoutName, LogitKeys

LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
EXPERT_COUNTS = (
    "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts",
)  # fmt: skip
"""Keys of config.json that count experts. Source: the configurations of all causal models of transformers 5.24."""
EXPERT_SWITCHES = ("is_moe", "enable_moe_block")
"""Keys that turn experts off in types that have dense models too."""
QUANTIZED = ("quantization_config", "compression_config")
"""Keys of config.json for weights in fewer bits."""


@cache
def families() -> dict[str, Family]:
    """Return every family by its `model_type`."""
    return {each.model_type: each for each in FAMILIES}


def model_types(layout: LayoutName | None = None) -> list[str]:
    """Return the types that are trained, or only those that a layout is tested for."""
    return sorted(each.model_type for each in families().values() if layout is None or layout in each.layouts)


def supports(model_type: str, layout: LayoutName) -> bool:
    """True if a layout is tested for a type."""
    return model_type in families() and layout in families()[model_type].layouts


def logit_scale_and_cap(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return what the head's product is multiplied with, and the cap of the logits, 0 for none."""
    family = families().get(str(config.get("model_type")))
    keys = family.logits if family else LogitKeys()
    scale = float(config.get(keys.times) or 1) / float(config.get(keys.over) or 1)
    return scale, float(config.get(keys.cap) or 0)


def is_mixture_of_experts(config: Mapping[str, Any]) -> bool:
    """True if a config.json, or a section in it such as `text_config`, asks for several experts."""
    if any(is_mixture_of_experts(section) for section in config.values() if isinstance(section, Mapping)):
        return True
    # Doge counts experts also where none are made.
    if any(config.get(key) is False for key in EXPERT_SWITCHES):
        return False
    counts = [config.get(key) for key in EXPERT_COUNTS]
    # ERNIE 4.5 counts the experts of text and of images apart.
    counts += [count for each in counts if isinstance(each, list) for count in each]
    return any(isinstance(count, int) and count > 1 for count in counts)


def refuse_mixture(config: Mapping[str, Any], name: str = "base.model") -> None:
    """Refuse a mixture of experts whose type is not proven, by its config.json, which counts experts if transformers wrote it."""
    supported = [kind for kind in model_types() if families()[kind].experts]
    if is_mixture_of_experts(config) and config.get("model_type") not in supported:
        raise PreflightError(
            f"{name}: model type {_type(config)} is a mixture of experts that is not supported; "
            f"take a model without experts, or one of {', '.join(supported)}"
        )


def is_packed(config: Mapping[str, Any]) -> bool:
    """True if weights are in the packing that their family publishes, which is undone once for a base."""
    family = families().get(str(config.get("model_type")))
    packing = family.packing if family else ""
    return bool(packing) and _quantization(config) == packing


def refuse_quantized(config: Mapping[str, Any], name: str) -> None:
    """Refuse quantized weights, which only packages of their makers read, where those are installed."""
    method = _quantization(config)
    if method and not is_packed(config):
        raise PreflightError(
            f"{name}: its weights are quantized ({method}), and only weights in FP32, BF16 or FP16 are trained; take "
            "the model that they were made from"
        )


def check_family(
    config: Mapping[str, Any],
    degrees: Mapping[str, int],
    name: str = "base.model",
    strategies: Collection[str] = (),
) -> None:
    """Refuse a model type that a layout is not proven for, and quantized weights, before anything is loaded.

    `degrees` are processes by layout, such as `shard`; other keys are not checked. `strategies` are the tokenizer's.
    """
    refuse_mixture(config, name)
    refuse_quantized(config, name)
    kind = str(config.get("model_type"))
    if kind not in families():
        raise PreflightError(
            f"{name}: model type {_type(config)} is not proven to train as transformers trains it; take one of "
            f"{', '.join(model_types())}"
        )
    refuse_other_class(config, name)
    more, changing = families()[kind].layer_tables, sorted({*strategies} - {"base"})
    # Where the key is missing, its type's default makes the table.
    if more and config.get(more.width, 1) and changing:
        raise PreflightError(
            f"tokenizer.strategies: {', '.join(changing)} would leave rows of {name} behind: the layers of model type "
            f"{kind!r} have a table of tokens too ({more.width}), which is not changed, set it to [base]"
        )
    for layout in LAYOUTS:
        degree = degrees.get(layout, 1)
        if degree > 1 and not supports(kind, layout):
            can_shard = layout != "shard" and supports(kind, "shard")
            instead = ", and share the model with shard" if can_shard else ""
            raise PreflightError(
                f"pretrain.parallelism.{layout}: {degree} is not proven for the model type {_type(config)} of {name}, "
                f"only for {', '.join(model_types(layout))}; set it to 1{instead}"
            )


def _quantization(config: Mapping[str, Any]) -> str:
    quantized = next((config[key] for key in QUANTIZED if config.get(key)), "")
    return str(quantized.get("quant_method") if isinstance(quantized, Mapping) else quantized)


def _type(config: Mapping[str, Any]) -> str:
    return repr(config["model_type"]) if config.get("model_type") else "(config.json names none)"
