"""Bytes of one device that the loss holds beside the states that it reads, at its worst moment."""

import math

from anadil.plan.activations import BF16, FP32, bytes_of
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Shape

LOSS_CHUNK_TOKENS = 512
"""Most tokens whose logits torch's fused loss holds at a time (`anadil.model.loss`); on a CPU a large vocabulary
has fewer, which is 0.1 GB less at 100,000."""


def loss_bytes(shape: Shape, layout: Layout, work: Work, tokens: float, *, forward: bool) -> float:
    """Bytes of the loss of `tokens` on this device, while it is made or (`forward` is false) in its gradient."""
    table, states, h = shape.embedding / layout.tensor, tokens * shape.hidden, shape.hidden
    size, chunk = bytes_of(work, layout), min(LOSS_CHUNK_TOKENS, tokens)
    if work.loss == "logits":
        # FP32 tables of all logits: with their log-probabilities, then with two gradients. Split by the
        # vocabulary the gradient takes one table more.
        tables = 2 if forward else 3 if layout.tensor == 1 else 4
        return tokens * tables * FP32 * shape.vocabulary / layout.tensor
    if layout.tensor > 1:
        # `summed_loss_of_rows` as a CPU has it, all in FP32; a GPU needs less. It holds the gathered states and
        # their gradient, the table's copy, its gradient and what is added to that, and the logits of a chunk.
        tables = 2 + (size.compute != FP32)
        return FP32 * (2 * tokens * h + tables * table + chunk * table / h)
    if work.kernels == "torch" and forward:
        # The engine's own loss, all in FP32: copies of states and table, both gradients, a chunk's logits.
        copies = FP32 * (states + table) if size.stream != FP32 or size.weight != FP32 else 0.0
        return copies + FP32 * (states + table) + chunk * FP32 * (table / h + h)
    if work.kernels == "torch":
        # torch's operator gives its gradients out as results, for which autograd makes zeros.
        return 2 * FP32 * (states + table)
    # Liger's: gradient of the states; that of the table in FP32, then a chunk's logits or its copy.
    logits = liger_chunk_tokens(math.ceil(tokens), h, shape.vocabulary) * size.compute * table / h
    gradient = states * (size.compute + (size.stream if size.autocast else 0))
    return (
        gradient + FP32 * table + max(size.compute * table, logits) + (BF16 * table if size.autocast else 0)
    )


def liger_chunk_tokens(tokens: int, hidden: int, vocabulary: int) -> int:
    """Tokens whose logits Liger's fused loss holds at a time: they take about as much as the hidden states.

    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py.
    """
    chunks = -(-vocabulary // hidden)
    return min(tokens, 1 << (-(-tokens // chunks) - 1).bit_length())
