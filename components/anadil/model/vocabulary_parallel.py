"""Cross-entropy where each process holds some rows of the output embeddings.

Of the logits a process makes only those of its own rows, for some tokens at a time. What the
softmax needs of the other rows are three numbers a token. Gradients are made beside the logits,
which are gone by the backward pass.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3, for the three numbers.
"""

from typing import Any

import torch
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from anadil.model.loss import CHUNK_TOKENS, IGNORED


def summed_loss_of_rows(
    hidden: torch.Tensor,
    weight_rows: torch.Tensor,
    labels: torch.Tensor,
    first_row: int,
    process_group: dist.ProcessGroup,
    z_loss: float = 0.0,
    token_losses: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum -ln p(label) + `z_loss` (ln Z)^2 over the labels that are not `IGNORED`, in FP32 nats.

    Every process of the group calls it with the same labels and gets the same bits. The gradient of `hidden` is
    complete, that of `weight_rows` is that of these rows. Matrix products are in the precision of the input, which is
    FP32 on a CPU; the rest is in FP32. The branch for BF16 on a GPU follows the signature of `torch.mm` in torch 2.13;
    the project's tests run on CPUs.

    Args:
        hidden: Last hidden states, (sequences, tokens, width), the same on every process; or this
            process's slice of the tokens, (sequences, tokens / processes, width).
        weight_rows: This process's output embeddings, (rows, width).
        labels: Ids of the tokens to predict, (sequences, tokens), the same on every process.
        first_row: Token id of the first of `weight_rows`.
        process_group: Processes that hold all rows together, in the order of the tokens.
        z_loss: Weight of the squared logarithm of the softmax's sum.
        token_losses: FP32 zeros in the shape of `labels`, filled with each label's part of the sum.

    Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 5, for the z-loss.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if hidden.shape[1] != labels.shape[1]:
        # Gathered slices lie one after another, and so must their labels.
        labels = labels.view(len(labels), -1, hidden.shape[1]).transpose(0, 1)
    each = None if token_losses is None else token_losses.new_zeros(labels.numel())
    graded = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        of_inputs = graded and hidden.requires_grad, graded and weight_rows.requires_grad
        result: torch.Tensor = _LossOfRows.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            hidden.to(dtype), weight_rows.to(dtype), labels.reshape(-1), first_row, process_group, z_loss, of_inputs, each
        )  # fmt: skip
    if token_losses is not None and each is not None:
        in_order = each.view(labels.shape)
        token_losses.copy_(
            (in_order.transpose(0, 1) if labels.ndim > 2 else in_order).reshape(token_losses.shape)
        )
    return result


class _LossOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight_rows: torch.Tensor, labels: torch.Tensor, first_row: int,
        group: dist.ProcessGroup, z_loss: float, graded: tuple[bool, bool], token_losses: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        states, rows = _gathered(hidden, len(labels), group), weight_rows
        if not states.is_cuda:
            states, rows = states.float(), rows.float()
        to_states = torch.empty_like(states) if graded[0] else None
        to_rows = torch.zeros_like(rows, dtype=torch.float32) if graded[1] else None
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        for start in range(0, len(labels), CHUNK_TOKENS):
            chunk = slice(start, start + CHUNK_TOKENS)
            part, gradient = _chunk(states[chunk], rows, labels[chunk] - first_row, group, z_loss)
            scored = torch.where(labels[chunk] == IGNORED, 0, part)
            loss += scored.sum()
            if token_losses is not None:
                token_losses[chunk] = scored
            gradient.masked_fill_((labels[chunk] == IGNORED)[:, None], 0)
            small = gradient.to(states.dtype)
            if to_states is not None:
                torch.mm(small, rows, out=to_states[chunk])
            if to_rows is not None:
                to_rows += _product(small.t(), states[chunk])
        ctx.shape = hidden.shape
        ctx.dtypes = hidden.dtype, weight_rows.dtype
        ctx.gradients = (None if to_states is None else _summed(to_states, hidden.shape, group)), to_rows
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        held, ctx.gradients = ctx.gradients, None  # else they lie beside those of all layers
        gradients = [
            None if gradient is None else (gradient * upstream).to(dtype)
            for gradient, dtype in zip(held, ctx.dtypes, strict=True)
        ]
        return (*gradients, None, None, None, None, None, None)


def _chunk(
    states: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, group: dist.ProcessGroup, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each token, and its gradient by the logits of these rows; other processes have other labels' `places`."""
    logits = _product(states, rows.t())
    is_here = (places >= 0) & (places < len(rows))
    place = places.clamp(0, len(rows) - 1)[:, None]
    highest = logits.amax(1)
    label = torch.where(is_here, logits.gather(1, place)[:, 0], 0)
    # In place: logits of one chunk are the largest tensor here.
    exponentials = logits.sub_(highest[:, None]).exp_()
    # One exchange, and the same sum in the same order on every process.
    mine = torch.stack([highest, exponentials.sum(1), label])
    each = mine.new_empty((dist.get_world_size(group) * len(mine), mine.shape[1]))
    dist.all_gather_single(each, mine, group=group)
    peaks, sums, labels = each.view(-1, *mine.shape).unbind(1)
    peak = peaks.amax(0)
    log_sum = peak + (sums * (peaks - peak).exp()).sum(0).log()
    loss = log_sum - labels.sum(0) + z_loss * log_sum.square()
    scale = (highest - log_sum).exp() * (1 + 2 * z_loss * log_sum)
    gradient = exponentials.mul_(scale[:, None])
    gradient.scatter_add_(1, place, -is_here[:, None].to(gradient.dtype))
    return loss, gradient


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply matrices in FP32, also those in BF16."""
    if left.dtype == torch.float32:
        return left @ right
    return torch.mm(left, right, out_dtype=torch.float32)


def _gathered(hidden: torch.Tensor, num_tokens: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Return all hidden states, (tokens, width), of this process's or of all slices one after another."""
    mine = hidden.reshape(-1, hidden.shape[-1])
    if len(mine) == num_tokens:
        return mine
    states = mine.new_empty((num_tokens, mine.shape[1]))
    dist.all_gather_single(states, mine.contiguous(), group=group)
    return states


def _summed(gradient: torch.Tensor, shape: torch.Size, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the sum over the processes, of all tokens or of this process's slice, in `shape`."""
    if gradient.numel() == shape.numel():
        dist.all_reduce(gradient, group=group)
        return gradient.view(shape)
    mine = gradient.new_empty(shape)
    dist.reduce_scatter_single(mine.view(-1, shape[-1]), gradient, group=group)
    return mine
