"""Cross-entropy straight from hidden states, so that the logits never stand in memory whole."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from anadil.errors import PreflightError
from anadil.units import MIB

IGNORED = -100
"""Label of a position that is not scored."""
CHUNK_TOKENS = 512
"""Most tokens whose logits stand in memory at a time; 256 to 1,024 were equally fast on a CPU."""
CPU_LOGITS_BYTES = 128 * MIB
"""Of a chunk on a CPU, where the loss of a large vocabulary is most of the memory: at 100,000 tokens, 256."""

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


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a device has BF16 matrix products of its own; without, a CPU makes them 10 to 200 times as slow.

    Source: aten/src/ATen/native/mkldnn/Matmul.cpp of torch 2.13, which otherwise takes a plain loop.
    """
    if device.type != "cpu":
        return True
    # avx512_bf16 and amx_bf16 on x86-64; other architectures end the name in the same way.
    return any(has for name, has in torch.cpu.get_capabilities().items() if name.endswith("bf16"))


def summed_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    kernels: str = "auto",
    z_loss: float = 0.0,
) -> torch.Tensor:
    """Sum of -ln p(label) in FP32 nats over the labels that are not `IGNORED`.

    On a GPU Liger's fused kernel does it, unless `kernels` is `torch`. Under autocast, or where
    states are kept in BF16, matrix products are in BF16, all else and the loss in FP32; a CPU
    without BF16 products stays in FP32. No gradient is made of what requires none.

    The GPU branches follow the sources of Liger 0.8.5 and torch 2.13; the project's tests run on CPUs.

    Args:
        hidden: Last hidden states, (sequences, tokens, width).
        weight: Output embeddings, (vocabulary, width).
        labels: Ids of the tokens to predict, (sequences, tokens).
        kernels: `pretrain.kernels`.
        z_loss: Adds this times (ln Z)^2 for each label; Z is the sum of the softmax.

    Raises:
        PreflightError: See `uses_liger`.

    Source: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2; z-loss: Chowdhery et al.
    2022, "PaLM", arXiv:2204.02311, section 5.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])
    labels = labels.reshape(-1)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if uses_liger(kernels, hidden.device):
        return _liger_loss(hidden.to(dtype), weight.to(dtype), labels, z_loss)
    if not multiplies_bf16(hidden.device):
        dtype = torch.float32
    if hidden.is_cuda and dtype == torch.bfloat16 and not z_loss:
        return bf16_loss(hidden.to(dtype), weight.to(dtype), labels)
    with torch.autocast(device, enabled=False):
        if dtype != torch.float32 or z_loss:
            return chunked_loss(hidden, weight, labels, dtype=dtype, z_loss=z_loss)
        # The default options choose a chunk that is four times slower, and no options keep all logits.
        chunk = chunk_tokens(weight)
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=chunk, acc_policy="compact")
        return nn.functional.linear_cross_entropy(
            hidden.float(), weight.float(), labels, reduction="sum", ignore_index=IGNORED, options=options
        )


def chunk_tokens(weight: torch.Tensor) -> int:
    """Tokens whose FP32 logits stand in memory at a time, a power of two.

    Args:
        weight: Output embeddings, (vocabulary, width).
    """
    if weight.device.type != "cpu":
        return CHUNK_TOKENS
    fitting = max(1, CPU_LOGITS_BYTES // (4 * len(weight)))
    return min(CHUNK_TOKENS, 1 << (fitting.bit_length() - 1))


def _liger_loss(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, z_loss: float
) -> torch.Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    # Liger adds `lse_square_scale * lse^2` to each scored token, and with `sum` divides neither.
    loss: Any = LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED, reduction="sum", accum_dtype=torch.float32, lse_square_scale=z_loss
    )
    result: torch.Tensor = loss(weight, hidden, labels)
    return result.float()


def chunked_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """`summed_loss` whose matrix products are in `dtype`, with every sum and logarithm in FP32.

    torch's `linear_cross_entropy` gives its loss in the precision of its input, whose steps in BF16
    are 512 nats wide beyond 65,536, and has no z-loss.

    Args:
        hidden: Last hidden states, (tokens, width).
        weight: Output embeddings, (vocabulary, width).
        labels: Ids of the tokens to predict, (tokens,).
        dtype: Of the matrix products; BF16 logits are rounded to it, on a CPU.
        z_loss: See `summed_loss`.
    """
    loss: torch.Tensor = _ChunkedLoss.apply(hidden, weight, labels, dtype, z_loss)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedLoss(torch.autograd.Function):
    """Loss and gradients in one pass over chunks of tokens, so that logits are made once and kept nowhere."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        dtype: torch.dtype,
        z_loss: float,
    ) -> torch.Tensor:
        states, table = hidden.to(dtype), weight.to(dtype)
        of_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        of_table = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        chunk = chunk_tokens(weight)
        logits = torch.empty(min(chunk, len(states)), len(table), dtype=torch.float32, device=hidden.device)
        for at in range(0, len(states), chunk):
            some = states[at : at + chunk]
            chances = _product(some, table, logits[: len(some)])
            losses, scale = _softmax_(chances, labels[at : at + chunk], z_loss)
            loss += losses.sum()
            chances = chances.to(dtype)
            if of_states is not None:
                of_states[at : at + chunk] = torch.mm(chances, table) * scale
            if of_table is not None:
                _add_product_(of_table, chances.t(), (some * scale).to(dtype))
        ctx.gradients = (
            None if of_states is None else of_states.to(hidden.dtype),
            None if of_table is None else of_table.to(weight.dtype),
        )
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "the gradients were scaled in place by an earlier backward pass"
        of_states, of_table = (None if one is None else one.mul_(grad_outputs[0]) for one in gradients)
        return of_states, of_table, None, None, None


def _product(states: torch.Tensor, table: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """`states @ table.T` into the FP32 `logits`, from BF16 without rounding where the device can."""
    if states.dtype == logits.dtype:
        return torch.mm(states, table.t(), out=logits)
    if states.is_cuda:
        return torch.mm(states, table.t(), out_dtype=logits.dtype, out=logits)
    return logits.copy_(torch.mm(states, table.t()))


def _softmax_(logits: torch.Tensor, labels: torch.Tensor, z_loss: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn logits into their gradient in place, but for a factor for each token; losses and factors.

    The factor is 1 + 2 z ln Z, or 0 where there is no label. It is left for the narrow side of the
    products that follow, which saves a pass over the logits; so the label loses not 1 but 1 / factor.

    Args:
        logits: (tokens, vocabulary) in FP32.
        labels: (tokens,).
        z_loss: See `summed_loss`.
    """
    scored = (labels != IGNORED).float()[:, None]
    labels = labels.clamp(min=0)[:, None]
    of_label = logits.gather(1, labels)
    top, where = logits.max(1, keepdim=True)
    torch.softmax(logits, 1, out=logits)
    # The largest chance is 1 / (Z / e^top), never below 1 / vocabulary: its logarithm is exact.
    log_z = top - logits.gather(1, where).log()
    losses = log_z - of_label + z_loss * log_z.square()
    factor = 1 + 2 * z_loss * log_z
    logits.scatter_add_(1, labels, -1 / factor)
    return losses * scored, factor * scored


def _add_product_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left @ right` to an FP32 total: in BF16 small gradients of later chunks would be lost."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right)


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
