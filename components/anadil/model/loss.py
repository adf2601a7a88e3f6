"""Cross-entropy computed from hidden states in chunks, so that the logits never stand in memory whole."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from anadil.core.errors import PreflightError
from anadil.core.format import MIB
from anadil.core.processor import has_bf16_products
from anadil.model.teacher import Teacher

IGNORED = -100
"""Label of a position that is not scored."""
CHUNK_TOKENS = 512
"""Most tokens whose logits stand in memory at a time; 256 to 1,024 were equally fast on a CPU."""
CPU_LOGITS_BYTES = 256 * MIB
"""Logits of a chunk on a CPU, where the loss of a large vocabulary is most of the memory."""
CPU_BLOCK_ROWS = 2048
"""Rows of the output embeddings that a CPU takes at a time: with 512 tokens their logits are 4 MiB."""

HAS_LIGER = find_spec("liger_kernel") is not None
"""Liger comes for x86-64 Linux only. Its presence does not say that there is a GPU."""


def uses_liger(kernels: str, device: torch.device) -> bool:
    """True if Liger's kernels run on this device under `pretrain.kernels`."""
    if kernels == "liger" and device.type != "cuda":
        raise PreflightError(
            f"pretrain.kernels is liger, but Liger's kernels need a GPU and this process has a {device.type}; "
            "run on a GPU, or set pretrain.kernels to auto or torch"
        )
    return kernels != "torch" and device.type == "cuda" and HAS_LIGER


def has_fast_bf16(device: torch.device) -> bool:
    """True for a device with BF16 matrix products; torch 2.13 knows no GPU without."""
    return device.type != "cpu" or has_bf16_products()


def summed_loss(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, kernels: str = "auto",
    z_loss: float = 0.0, cap: float = 0.0, token_losses: torch.Tensor | None = None, teacher: Teacher | None = None,
) -> torch.Tensor:  # fmt: skip
    """Sum -ln p(label) in FP32 nats over the labels that are not `IGNORED`, and the weighted divergence from a teacher.

    On a GPU Liger's fused kernel does it, unless `kernels` is `torch`. Under autocast, or where states are in BF16,
    matrix products are in BF16, all else in FP32. A CPU without BF16 products stays in FP32.
    The GPU branches follow the sources of Liger 0.8.5 and torch 2.13, and have run on an H100 with torch 2.11.

    Args:
        hidden: Last hidden states, (sequences, tokens, width).
        weight: Output embeddings, (vocabulary, width).
        labels: Ids of the tokens to predict, (sequences, tokens).
        z_loss: Adds this times (ln Z)^2 for each label; Z is the sum of the softmax.
        cap: Logits become cap x tanh(logits / cap), unless it is 0.
        token_losses: FP32 zeros in the shape of `labels`, filled with each label's part of the sum.
        teacher: Chances with (sequences, tokens, k) ids, whose divergence is added where the label is not `IGNORED`.

    Source: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2; z-loss: Chowdhery et al.
    2022, "PaLM", arXiv:2204.02311, section 5.
    """
    if teacher is not None and uses_liger(kernels, hidden.device):
        return _loss_beside_liger(hidden, weight, labels, kernels, z_loss, cap, token_losses, teacher)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    all_labels = labels = labels.reshape(-1)
    if teacher is not None:
        teacher = teacher.changed(lambda each: each.reshape(-1, each.shape[-1]))
    if hidden.device.type == "cpu":  # a GPU would have to wait for the number of those left
        hidden, labels = scored_tokens(hidden, labels)
        if teacher is not None and len(labels) < len(all_labels):
            teacher = teacher.at(all_labels != IGNORED)
    each = None if token_losses is None else token_losses.new_zeros(len(labels))
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if uses_liger(kernels, hidden.device):
        loss = _liger_loss(hidden.to(dtype), weight.to(dtype), labels, z_loss, cap, each)
    else:
        dtype = dtype if has_fast_bf16(hidden.device) else torch.float32
        with torch.autocast(device, enabled=False):
            loss = chunked_loss(
                hidden,
                weight,
                labels,
                dtype=dtype,
                z_loss=z_loss,
                cap=cap,
                token_losses=each,
                teacher=teacher,
            )
    if token_losses is not None and each is not None:
        scored = slice(None) if len(labels) == len(all_labels) else all_labels != IGNORED
        token_losses.view(-1)[scored] = each
    return loss


def _loss_beside_liger(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, kernels: str, z_loss: float, cap: float,
    token_losses: torch.Tensor | None, teacher: Teacher,
) -> torch.Tensor:  # fmt: skip
    """Sum the loss of sequences with a teacher by chunks, and of all others by Liger, which knows no teacher."""
    taught = teacher.rows.cpu()
    parts = []
    for rows, how, known in ((~taught, kernels, None), (taught, "torch", teacher.at(taught))):
        if not rows.any():
            continue
        each = None if token_losses is None else torch.zeros_like(token_losses[rows])
        parts.append(summed_loss(
            hidden[rows], weight, labels[rows], kernels=how, z_loss=z_loss, cap=cap, token_losses=each, teacher=known
        ))  # fmt: skip
        if token_losses is not None and each is not None:
            token_losses[rows] = each
    return torch.stack(parts).sum()


def scored_tokens(hidden: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states and labels of the positions that are scored."""
    # The planner's tensors have no content: every label counts as scored.
    unscored = labels == IGNORED
    return (hidden[~unscored], labels[~unscored]) if unscored.any() else (hidden, labels)


def chunk_tokens(weight: torch.Tensor) -> int:
    """Return the tokens whose FP32 logits stand in memory at a time, a power of two."""
    if weight.device.type != "cpu":
        return CHUNK_TOKENS
    fitting = max(1, CPU_LOGITS_BYTES // (4 * len(weight)))
    return min(CHUNK_TOKENS, 1 << (fitting.bit_length() - 1))


def _liger_loss(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor,
    z_loss: float, cap: float, token_losses: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    if token_losses is not None:
        result: torch.Tensor = _LigerTokenLosses.apply(hidden, weight, labels, z_loss, cap, token_losses)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return result
    # Liger adds `lse_square_scale * lse^2` to each scored token, and with `sum` divides neither.
    loss: Any = LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED,
        reduction="sum",
        accum_dtype=torch.float32,
        lse_square_scale=z_loss,
        softcap=cap or None,
    )
    result = loss(weight, hidden, labels)
    return result.float()


class _LigerTokenLosses(torch.autograd.Function):
    """Liger's fused kernel with `sum`, and each token's loss beside."""

    # Its own `none` gives each token's loss too, but computes the logits again in the backward pass, since each token
    # may then have a gradient of its own. Here all have the same, as with `sum`, so the first pass's gradients do.
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor,
        z_loss: float, cap: float, token_losses: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward

        losses, *_, of_states, of_table, _ = fused_linear_cross_entropy_forward(
            hidden, weight, labels, ignore_index=IGNORED, lse_square_scale=z_loss, reduction="none",
            accum_dtype=torch.float32, softcap=cap or None,
        )  # fmt: skip
        token_losses.copy_(losses)
        ctx.gradients = of_states, of_table
        total: torch.Tensor = losses.sum()
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "the gradients were scaled in place by an earlier backward pass"
        of_states, of_table = (None if one is None else one.mul_(grad_outputs[0]) for one in gradients)
        return of_states, of_table, None, None, None, None


def chunked_loss(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, dtype: torch.dtype = torch.float32,
    z_loss: float = 0.0, cap: float = 0.0, token_losses: torch.Tensor | None = None, teacher: Teacher | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute `summed_loss` of (tokens, width) with matrix products in `dtype`, and every sum and logarithm in FP32."""
    # torch's `linear_cross_entropy` is slower on a CPU, whose cache it does not heed. It gives its loss in the precision
    # of its input, whose steps in BF16 are 512 nats wide beyond 65,536, and has no z-loss.
    graded = torch.is_grad_enabled()
    of_inputs = graded and hidden.requires_grad, graded and weight.requires_grad
    loss: torch.Tensor = _ChunkedLoss.apply(
        hidden, weight, labels, dtype, z_loss, cap, of_inputs, token_losses, teacher
    )  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss


class _ChunkedLoss(torch.autograd.Function):
    """Loss and gradients in one pass over chunks of tokens, so that logits are made once and kept nowhere."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor,
        dtype: torch.dtype, z_loss: float, cap: float, graded: tuple[bool, bool],
        token_losses: torch.Tensor | None, teacher: Teacher | None,
    ) -> torch.Tensor:  # fmt: skip
        loss, *gradients = _by_chunks(
            hidden.to(dtype), weight.to(dtype), labels, z_loss, cap, graded, token_losses, teacher
        )
        # By now the copies in `dtype` are gone, and those in the inputs' precision take their place.
        ctx.gradients = [
            None if gradient is None else gradient.to(like.dtype)
            for gradient, like in zip(gradients, (hidden, weight), strict=True)
        ]
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "the gradients were scaled in place by an earlier backward pass"
        of_states, of_table = (None if one is None else one.mul_(grad_outputs[0]) for one in gradients)
        return of_states, of_table, None, None, None, None, None, None, None


def _by_chunks(
    states: torch.Tensor, table: torch.Tensor, labels: torch.Tensor, z_loss: float, cap: float,
    graded: tuple[bool, bool], token_losses: torch.Tensor | None, teacher: Teacher | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Return the loss, and its gradients by `states` and `table` in FP32 where they are asked for."""
    of_states = torch.zeros_like(states, dtype=torch.float32) if graded[0] else None
    of_table = torch.zeros_like(table, dtype=torch.float32) if graded[1] else None
    loss = torch.zeros((), dtype=torch.float32, device=states.device)
    chunk = chunk_tokens(table)
    rows = CPU_BLOCK_ROWS if table.device.type == "cpu" else len(table)
    held = len(table) if any(graded) else min(rows, len(table))
    space = torch.empty(min(chunk, len(states)) * held, dtype=torch.float32, device=states.device)
    for at in range(0, len(states), chunk):
        some = slice(at, at + chunk)
        known = None if teacher is None else teacher.at(some)
        blocks = _Blocks(
            states[some],
            table,
            [labels[some][:, None], *([] if known is None else [known.ids])],
            rows,
            space,
            cap,
        )
        logits, log_z = blocks.logits()
        scored = (labels[some] != IGNORED).float()
        each = (log_z - logits[0][:, 0] + z_loss * log_z.square()) * scored
        loss += each.sum()
        if token_losses is not None:
            token_losses[some] = each
        factor, added = (1 + 2 * z_loss * log_z) * scored, [-scored[:, None]]
        if known is not None:
            nats, more, at_ids = known.pull(logits[1], log_z, scored)
            loss += nats
            factor += more
            added.append(at_ids)
        if not any(graded):
            continue
        for begin, gradient in blocks.gradients(log_z, factor, added):
            block = slice(begin, begin + rows)
            if of_states is not None:
                _add_product_(of_states[some], gradient, table[block])
            if of_table is not None:
                _add_product_(of_table[block], gradient.t(), states[some])
    return loss, of_states, of_table


class _Blocks:
    """Softmax of some tokens, a block of the vocabulary at a time, which fits a CPU's cache."""

    def __init__(
        self, states: torch.Tensor, table: torch.Tensor, columns: Sequence[torch.Tensor], rows: int,
        space: torch.Tensor, cap: float = 0.0,
    ) -> None:  # fmt: skip
        self.states, self.table, self.rows, self.space, self.cap = states, table, rows, space, cap
        self.columns = columns
        """Ids by token whose logits are asked for, each (tokens, any number). A negative one is no id."""
        self.parts: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        """First row of a block, the softmax among its rows, and the logarithm of its exponentials' sum."""

    def logits(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the logits of `columns`, and ln Z of each token, the logarithm of the sum of all its exponentials."""
        tokens, vocabulary = len(self.states), len(self.table)
        all_at_once = self.space.numel() >= tokens * vocabulary
        sums = [self.space.new_zeros(each.shape) for each in self.columns]
        for begin in range(0, vocabulary, self.rows):
            block = self.table[begin : begin + self.rows]
            at = tokens * begin if all_at_once else 0
            logits = self.space[at : at + tokens * len(block)].view(tokens, len(block))
            cap_(_product(self.states, block, logits), self.cap)
            for total, each in zip(sums, self.columns, strict=True):
                place, is_here = _places_in(each - begin, len(block))
                total.add_(logits.gather(1, place) * is_here)
            peak = logits.amax(1, keepdim=True)
            torch.softmax(logits, 1, out=logits)
            # The largest chance is e^peak / Z, never below 1 / rows: its logarithm is exact.
            self.parts.append((begin, logits, peak - logits.amax(1, keepdim=True).log()))
        log_z = torch.cat([part[2] for part in self.parts], 1).logsumexp(1, keepdim=True)
        return sums, log_z[:, 0]

    def gradients(
        self, log_z: torch.Tensor, factor: torch.Tensor, added: Sequence[torch.Tensor]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield a block's first row, and factor x softmax + what is `added` at `columns` in the products' precision."""
        for begin, chances, log_sum in self.parts:
            slope = cap_slope(chances, log_sum, self.cap)
            chances.mul_((log_sum - log_z[:, None]).exp() * factor[:, None])
            # One after another: on a GPU, two additions to one number in one call come in any order.
            for more, each in zip(added, self.columns, strict=True):
                place, is_here = _places_in(each - begin, chances.shape[1])
                chances.scatter_add_(1, place, is_here * more)
            if slope is not None:
                chances.mul_(slope)
            yield begin, chances.to(self.states.dtype)


def _places_in(places: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where among `num` rows the places are, and 1 for a place among them, else 0."""
    return places.clamp(0, num - 1), ((places >= 0) & (places < num)).float()


def cap_(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """Cap logits in place: cap x tanh(logits / cap), unless it is 0."""
    return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def cap_slope(exponentials: torch.Tensor, log_sum: torch.Tensor, cap: float) -> torch.Tensor | None:
    """Return the derivative of `cap_`, from e^(capped logits - `log_sum`), which took their place, or None without a cap."""
    if not cap:
        return None
    # A cap keeps logits near each other: no exponential is 0 for the caps of published models, 30 and 50.
    smallest = torch.finfo(exponentials.dtype).tiny
    return exponentials.clamp_min(smallest).log_().add_(log_sum).div_(cap).square_().neg_().add_(1)


def _product(states: torch.Tensor, table: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Multiply `states @ table.T` into the FP32 `logits`, from BF16 without rounding where the device can."""
    if states.dtype == logits.dtype:
        return torch.mm(states, table.t(), out=logits)
    if states.is_cuda:
        return torch.mm(states, table.t(), out_dtype=logits.dtype, out=logits)
    return logits.copy_(torch.mm(states, table.t()))


def _add_product_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left @ right` to an FP32 total: in BF16 small gradients of later chunks would be lost."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right)


def summed_loss_of_rows(
    hidden: torch.Tensor, weight_rows: torch.Tensor, labels: torch.Tensor, first_row: int,
    process_group: dist.ProcessGroup, z_loss: float = 0.0, cap: float = 0.0,
    token_losses: torch.Tensor | None = None, teacher: Teacher | None = None,
) -> torch.Tensor:  # fmt: skip
    """Sum -ln p(label) + `z_loss` (ln Z)^2 over the labels that are not `IGNORED`, in FP32 nats.

    Every process of the group calls it with the same labels and gets the same bits. The gradient of `hidden` is
    complete, that of `weight_rows` is that of these rows. Matrix products are in the precision of the input, which is
    FP32 on a CPU; the rest is in FP32. The branch for BF16 on a GPU follows the signature of `torch.mm` in torch 2.13;
    the project's tests run on CPUs.

    `hidden` is the same on every process, or its slice of the tokens, (sequences, tokens / processes, width).
    `weight_rows` are its output embeddings, from the token `first_row` on. All else is as for `summed_loss`.

    Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3: of other rows the softmax needs three numbers.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if hidden.shape[1] != labels.shape[1]:
        # Gathered slices lie one after another, and so must their labels.
        by_slice = len(labels), -1, hidden.shape[1]
        labels = labels.view(by_slice).transpose(0, 1)
        teacher = teacher and teacher.changed(
            lambda tensor: tensor.view(*by_slice, tensor.shape[-1]).transpose(0, 1)
        )
    teacher = teacher and teacher.changed(lambda tensor: tensor.reshape(-1, tensor.shape[-1]))
    each = None if token_losses is None else token_losses.new_zeros(labels.numel())
    graded = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        of_inputs = graded and hidden.requires_grad, graded and weight_rows.requires_grad
        result: torch.Tensor = _LossOfRows.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            hidden.to(dtype), weight_rows.to(dtype), labels.reshape(-1), first_row, process_group, z_loss, cap, of_inputs, each, teacher
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
        group: dist.ProcessGroup, z_loss: float, cap: float, graded: tuple[bool, bool],
        token_losses: torch.Tensor | None, teacher: Teacher | None,
    ) -> torch.Tensor:  # fmt: skip
        states, rows = _gathered(hidden, len(labels), group), weight_rows
        if not states.is_cuda:
            states, rows = states.float(), rows.float()
        to_states = torch.empty_like(states) if graded[0] else None
        to_rows = torch.zeros_like(rows, dtype=torch.float32) if graded[1] else None
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        for start in range(0, len(labels), CHUNK_TOKENS):
            chunk = slice(start, start + CHUNK_TOKENS)
            known = None if teacher is None else teacher.at(chunk)
            scored = (labels[chunk] != IGNORED).float()
            part, nats, gradient = _chunk(
                states[chunk], rows, labels[chunk], first_row, scored, group, z_loss, cap, known
            )
            loss += part.sum() + nats
            if token_losses is not None:
                token_losses[chunk] = part
            small = gradient.to(states.dtype)
            if to_states is not None:
                torch.mm(small, rows, out=to_states[chunk])
            if to_rows is not None:
                to_rows += _fp32_product(small.t(), states[chunk])
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
        return (*gradients, None, None, None, None, None, None, None, None)


def _chunk(
    states: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, first_row: int, scored: torch.Tensor,
    group: dist.ProcessGroup, z_loss: float, cap: float, teacher: Teacher | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the loss of each token, the weighted divergence, and the gradient by the logits of these rows."""
    logits = cap_(_fp32_product(states, rows.t()), cap)
    columns = [labels[:, None], *([] if teacher is None else [teacher.ids])]
    # Other processes have the logits of other ids.
    places = [_places_in(torch.where(each < 0, each, each - first_row), len(rows)) for each in columns]
    highest = logits.amax(1)
    mine = [(logits.gather(1, place) * is_here).t() for place, is_here in places]
    # In place: logits of one chunk are the largest tensor here.
    exponentials = logits.sub_(highest[:, None]).exp_()
    # One exchange, and the same sum in the same order on every process.
    sent = torch.cat([torch.stack([highest, exponentials.sum(1)]), *mine])
    each = sent.new_empty((dist.get_world_size(group) * len(sent), sent.shape[1]))
    dist.all_gather_single(each, sent, group=group)
    every = each.view(-1, *sent.shape)
    peaks, sums, of_columns = every[:, 0], every[:, 1], every[:, 2:].sum(0).t()
    peak = peaks.amax(0)
    log_sum = peak + (sums * (peaks - peak).exp()).sum(0).log()
    loss = (log_sum - of_columns[:, 0] + z_loss * log_sum.square()) * scored
    factor, added, nats = (1 + 2 * z_loss * log_sum) * scored, [-scored[:, None]], log_sum.new_zeros(())
    if teacher is not None:
        nats, more, at_ids = teacher.pull(of_columns[:, 1:], log_sum, scored)
        factor += more
        added.append(at_ids)
    slope = cap_slope(exponentials, highest[:, None], cap)
    gradient = exponentials.mul_(((highest - log_sum).exp() * factor)[:, None])
    for more, (place, is_here) in zip(added, places, strict=True):
        gradient.scatter_add_(1, place, is_here * more)
    if slope is not None:
        gradient.mul_(slope)
    return loss, nats, gradient


def _fp32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
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
