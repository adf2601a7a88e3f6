"""Activation checkpointing: the backward pass computes again what the forward pass does not store.

`full` stores the input of each layer. `selective` stores the results of matrix products and of
attention as well, which cost the most, and computes norms, activations, rotations and
sums again. Neither changes a number: the same kernels see the same inputs twice.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from anadil.core.errors import DataError
from anadil.model.attention_operator import OPERATOR

Policy = Literal["none", "selective", "full"]

PRODUCTS = "mm addmm bmm baddbmm _scaled_mm"
ATTENTIONS = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable"
)
SAVED_OPERATORS: list[Any] = [
    OPERATOR,
    *(getattr(torch.ops.aten, name).default for name in f"{PRODUCTS} {ATTENTIONS}".split()),
]
"""Results that `selective` keeps. Source: torchtitan's list of saved operators, with every matrix product."""


def decoder_layers(model: PreTrainedModel) -> Sequence[nn.Module]:
    """Return the layers of a Llama-like model, first to last."""
    layers = getattr(model.base_model, "layers", None)
    if isinstance(layers, nn.ModuleDict):  # those of one pipeline stage, by their numbers
        layers = nn.ModuleList(layers.values())
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise DataError(
            f"base.model: a {model.config.model_type} model has no `layers` whose activations could be made "
            "again; set pretrain.activation_checkpointing to none, or use a Llama-like base.model"
        )
    return list(layers)


def checkpoint_layers(layers: Sequence[nn.Module], policy: Policy) -> None:
    """Let each layer's forward pass store only what `policy` says; parameter names stay.

    The module itself stays too and only its `forward` is replaced, so that hooks, those of a later
    `fully_shard` too, run once around the pair of passes. No random number is restored: layers
    must draw none. A kernel that overwrites a stored result behind autograd's back would find it
    overwritten in the second pass.
    """
    if policy == "none":
        return
    selective = {"context_fn": partial(create_selective_checkpoint_contexts, SAVED_OPERATORS)}
    for layer in layers:
        changed: Any = layer
        # A partial of the bound method, not a closure, so that a deep copy calls its own layer.
        changed.forward = partial(_twice, layer.forward, selective if policy == "selective" else {})


def _twice(forward: Any, contexts: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    # `checkpoint` called from a frame that torch.compile looks into; torch's own it leaves as they are.
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **contexts, **kwargs)
