"""Cross-entropy straight from hidden states, so that the logits never stand in memory whole."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from anadil.errors import PreflightError

IGNORED = -100
"""Label of a position that is not scored."""
CHUNK_TOKENS = 512
"""Tokens whose logits stand in memory at a time; 256 to 1,024 were equally fast on a CPU."""

HAS_LIGER = find_spec("liger_kernel") is not None
"""Liger comes for x86-64 Linux only. Its presence does not say that there is a GPU."""


def uses_liger(kernels: str, device: torch.device) -> bool:
    """Whether Liger's kernels run on this device under `pretrain.kernels`.

    Raises:
        PreflightError: `liger` is asked for where it cannot run.
    """
    if kernels == "liger" and device.type != "cuda":
        raise PreflightError(
            f"pretrain.kernels is liger, but Liger's kernels need a GPU and this process has a {device.type}; "
            "run on a GPU, or set pretrain.kernels to auto or torch"
        )
    if kernels == "liger" and not HAS_LIGER:
        raise PreflightError(
            "pretrain.kernels is liger, but liger-kernel is not installed; "
            "pip install liger-kernel (x86-64 Linux), or set pretrain.kernels to auto or torch"
        )
    return kernels != "torch" and device.type == "cuda" and HAS_LIGER


def summed_loss(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, kernels: str = "auto"
) -> torch.Tensor:
    """Sum of -ln p(label) in FP32 nats over the labels that are not `IGNORED`.

    On a GPU Liger's fused kernel does it, unless `kernels` is `torch`; elsewhere torch's. The CPU
    works in FP32 whatever the precision of the layers, because `linear_cross_entropy` returns its
    loss in the precision of its input.

    The GPU branches follow the sources of Liger 0.8.5 and torch 2.13; the project's tests run on CPUs.

    Args:
        hidden: Last hidden states, (sequences, tokens, width).
        weight: Output embeddings, (vocabulary, width).
        labels: Ids of the tokens to predict, (sequences, tokens).
        kernels: `pretrain.kernels`.

    Raises:
        PreflightError: See `uses_liger`.

    Source: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])
    labels = labels.reshape(-1)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if uses_liger(kernels, hidden.device):
        return _liger_loss(hidden.to(dtype), weight.to(dtype), labels)
    if hidden.is_cuda and dtype == torch.bfloat16:
        return bf16_loss(hidden.to(dtype), weight.to(dtype), labels)
    # The default options choose a chunk that is four times slower, and no options keep all logits.
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_TOKENS, acc_policy="compact")
    with torch.autocast(device, enabled=False):
        return nn.functional.linear_cross_entropy(
            hidden.float(), weight.float(), labels, reduction="sum", ignore_index=IGNORED, options=options
        )


def _liger_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss: Any = LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED, reduction="sum", accum_dtype=torch.float32
    )
    result: torch.Tensor = loss(weight, hidden, labels)
    return result.float()


def bf16_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """`summed_loss` by torch with matrix products in BF16, many times as fast on a GPU as in FP32.

    torch adds up a sum in BF16 too, whose steps are 512 nats wide beyond 65,536; so each token's
    loss is asked for and added up in FP32, for which torch makes the logits again in its backward
    pass. Logarithms and gradients are taken in FP32.

    Args:
        hidden: Last hidden states in BF16, (tokens, width).
        weight: Output embeddings in BF16, (vocabulary, width).
        labels: Ids of the tokens to predict, (tokens,).
    """
    options = nn.LinearCrossEntropyOptions(
        batch_chunk_size=CHUNK_TOKENS, acc_policy="compact", acc_dtype=torch.float32
    )
    with torch.autocast(hidden.device.type, enabled=False):
        each = nn.functional.linear_cross_entropy(
            hidden, weight, labels, reduction="none", ignore_index=IGNORED, options=options
        )
    return each.float().sum()
