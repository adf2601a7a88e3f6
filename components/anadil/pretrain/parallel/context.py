"""Context parallelism: each process of a group holds one slice of every sequence of a batch.

Attention looks at several tokens. For it each process gathers keys and values of the whole
sequences and attends with its own queries. Backwards, gradients of keys and values are summed over
the group and each process gets those of its slice. Packed documents are short, so slices cost about
the same; a document as long as a sequence costs the last process most. The gathering is not overlapped.
A convolution or a recurrent state runs over whole sequences on every process of the group, so that it costs as often.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from anadil.core.errors import PreflightError
from anadil.estimate.layout import cuts_evenly
from anadil.model.attention import attend, choose_attention, flatten_rows, no_mask, refuse_unknown
from anadil.model.recurrence import start_anew_at_borders
from anadil.pretrain.data.batch import Batch

NAME = "anadil_context"
"""Name of this attention in transformers."""


def check_context(sequence_length: int, context: int, tensor: int = 1) -> None:
    """Refuse degrees that do not cut sequences into slices of one length, with a `PreflightError`."""
    if not cuts_evenly(sequence_length, context=context, tensor=tensor):
        raise PreflightError(
            f"pretrain.sequence_length: {sequence_length} tokens are not a multiple of context {context} x tensor "
            f"{tensor}, so they cannot be shared evenly; choose a multiple of {context * tensor}, or change "
            "pretrain.parallelism"
        )


def slice_of(batch: Batch, rank: int, size: int) -> Batch:
    """Cut out the slice of every sequence for process `rank` of `size`; borders stay those of whole sequences."""
    # Packing has moved labels by one token already, so that none is lost at a cut.
    length = batch.input_ids.shape[1] // size
    mine = slice(rank * length, (rank + 1) * length)
    return replace(
        batch,
        input_ids=batch.input_ids[:, mine].contiguous(),
        position_ids=batch.position_ids[:, mine].contiguous(),
        labels=batch.labels[:, mine].contiguous(),
        teacher=batch.teacher and batch.teacher.changed(lambda each: each[:, mine].contiguous()),
    )


def use_context_attention(model: PreTrainedModel, group: dist.ProcessGroup) -> None:
    """Let a model attend over sequences that `group` shares; raises as `use_packed_attention`."""
    AttentionInterface.register(NAME, partial(context_attention, group=group))
    AttentionMaskInterface.register(NAME, no_mask)
    choose_attention(model, NAME)
    start_anew_at_borders(model, partial(_whole_sequences, group))


def _whole_sequences(
    group: dist.ProcessGroup, run: Callable[[torch.Tensor], torch.Tensor], mine: torch.Tensor
) -> torch.Tensor:
    """Run a function of whole sequences on this process's slice, (sequences, tokens, width), alike on all processes."""
    length, rank = mine.shape[1], dist.get_rank(group)
    whole: torch.Tensor = _Gather.apply(mine.transpose(0, 1).contiguous(), group)  # type: ignore[no-untyped-call]
    return run(whole.transpose(0, 1))[:, rank * length : (rank + 1) * length]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def context_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, *, borders: torch.Tensor,
    group: dist.ProcessGroup, **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attend as `packed_attention_forward`, with this process's slice of the sequences that `group` shares in its order.

    `borders` are those of documents in the whole sequences.
    """
    assert attention_mask is None, "borders take the place of attention_mask"
    rows, _, length, _ = query.shape
    size = dist.get_world_size(group)
    refuse_unknown(module, others)
    device = query.device.type
    if torch.is_autocast_enabled(device):  # before the gathering, which then moves half as much
        key, value = (states.to(torch.get_autocast_dtype(device)) for states in (key, value))
    part = _part(borders.cpu().numpy().tobytes(), rows, length, dist.get_rank(group), size)
    # Tokens first, as the gathering lays one process's after another's.
    mine = torch.stack([states.permute(2, 0, 1, 3) for states in (key, value)], dim=2)
    whole: torch.Tensor = _Gather.apply(mine.contiguous(), group)  # type: ignore[no-untyped-call]
    seen = torch.cat([whole[begin : part.end, row] for row, begin in enumerate(part.begins)])
    attended = attend(
        flatten_rows(query), seen[:, 0], seen[:, 1], part.query_borders, part.key_borders, scale=scaling,
        window=others.get("sliding_window") or 0, cap=others.get("softcap") or 0.0,
        sinks=others.get("s_aux"),
    )  # fmt: skip
    return attended.view(rows, length, *attended.shape[1:]), None


class _Gather(torch.autograd.Function):
    """Gathers the tokens of all processes; backwards sums the gradients of each process's tokens."""

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = mine.new_empty(mine.shape[0] * dist.get_world_size(group), *mine.shape[1:])
        dist.all_gather_single(whole, mine, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[torch.Tensor, None]:
        gradient: torch.Tensor = grad_outputs[0]
        mine = gradient.new_empty(gradient.shape[0] // dist.get_world_size(ctx.group), *gradient.shape[1:])
        dist.reduce_scatter_single(mine, gradient.contiguous(), group=ctx.group)
        return mine, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Keys that the queries of one slice of every sequence see."""

    query_borders: torch.Tensor
    key_borders: torch.Tensor
    begins: tuple[int, ...]
    """By sequence, the first token of the document that reaches into the slice."""
    end: int
    """The slice's end."""


@lru_cache(maxsize=64)
def _part(borders: bytes, rows: int, length: int, rank: int, size: int) -> _Part:
    """Find the documents of one slice: queries within it, keys from each document's begin."""
    documents = list(pairwise(np.frombuffer(borders, dtype=np.int32).tolist()))
    queries, keys, begins = [0], [0], []
    for row in range(rows):
        start = row * length * size
        begin, end = start + rank * length, start + (rank + 1) * length
        within = [(first, last) for first, last in documents if first < end and last > begin]
        begins.append(within[0][0] - start)
        for first, last in within:
            queries.append(queries[-1] + min(last, end) - max(first, begin))
            keys.append(keys[-1] + min(last, end) - first)
    return _Part(
        query_borders=torch.from_numpy(np.array(queries, dtype=np.int32)),
        key_borders=torch.from_numpy(np.array(keys, dtype=np.int32)),
        begins=tuple(begins),
        end=(rank + 1) * length,
    )
