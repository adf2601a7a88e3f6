"""Cross-entropy straight from hidden states, so that the logits never stand in memory whole."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

IGNORED = -100
"""Label of a position that is not scored."""
CHUNK_TOKENS = 512
"""Tokens whose logits stand in memory at a time; 256 to 1,024 were equally fast on a CPU."""

HAS_LIGER = find_spec("liger_kernel") is not None
"""Liger comes for x86-64 Linux only. Its presence does not say that there is a GPU."""


def summed_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of -ln p(label) in FP32 nats over the labels that are not `IGNORED`.

    On a GPU Liger's fused kernel does it, on a CPU torch's. Both give the gradients in the
    same pass. The CPU works in FP32 whatever the precision of the layers, because
    `linear_cross_entropy` returns its loss in the precision of its input.

    The GPU branch follows Liger 0.8.5's source; the project's tests run on CPUs.

    Args:
        hidden: Last hidden states, (sequences, tokens, width).
        weight: Output embeddings, (vocabulary, width).
        labels: Ids of the tokens to predict, (sequences, tokens).

    Source: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])
    labels = labels.reshape(-1)
    if hidden.is_cuda and HAS_LIGER:
        return _liger_loss(hidden, weight, labels)
    # The default options choose a chunk that is four times slower, and no options keep all logits.
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_TOKENS, acc_policy="compact")
    with torch.autocast("cpu", enabled=False):
        return nn.functional.linear_cross_entropy(
            hidden.float(), weight.float(), labels, reduction="sum", ignore_index=IGNORED, options=options
        )


def _liger_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else hidden.dtype
    loss: Any = LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED, reduction="sum", accum_dtype=torch.float32
    )
    result: torch.Tensor = loss(weight.to(dtype), hidden.to(dtype), labels)
    return result.float()
