"""What Liger's fused linear cross-entropy allocates on a GPU, without its arithmetic.

Liger 0.8.5 (`liger_kernel/ops/fused_linear_cross_entropy.py`) asks for the GPU's capability to
choose between a path that adds into the gradient in place and one that makes FP32 copies, so
its own code cannot run on tensors that are on no GPU.
"""

from typing import Any

import torch


class LigerLoss(torch.autograd.Function):
    """A loss that holds what Liger's holds with an FP32 accumulator, on an Ampere GPU or newer."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A number without a meaning.

        Args:
            ctx: Of autograd.
            hidden: (tokens, width).
            weight: Output embeddings, (vocabulary, width).
        """
        states = torch.zeros_like(hidden)
        table = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        rows = torch.zeros(hidden.shape[0], dtype=torch.float32)
        (tokens, width), vocabulary = hidden.shape, len(weight)
        logits = torch.empty(chunk_tokens(tokens, width, vocabulary), vocabulary, dtype=hidden.dtype)
        del logits
        ctx.save_for_backward(states, None if table is None else table.to(weight.dtype))
        return rows.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ARG004  the name is torch's
        """The gradients that the forward pass has made."""
        return ctx.saved_tensors


def chunk_tokens(tokens: int, width: int, vocabulary: int) -> int:
    """Tokens whose logits stand in memory at a time: they take about as much as the hidden states."""
    chunks = -(-vocabulary // width)
    return min(tokens, 1 << (-(-tokens // chunks) - 1).bit_length())
