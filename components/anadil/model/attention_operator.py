"""Attention of packed documents as one operator, for CPUs and GPUs, forwards and backwards.

As one operator it lets `torch.compile` see no break, and selective activation recompute store one
result. The GPU branches follow the source of torch 2.13, torch/nn/attention/varlen.py. On an H100
they have run with torch 2.11, whose operator has no `enable_gqa` and takes grouped heads all the
same. Where a document has fewer queries than keys, Flash attention's causal mask is that of the
lower right too. Source: flash-attention, README, "2.1: Change behavior of causal flag"; torch 2.13,
torch/nn/attention/bias.py, which relies on it.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.attention import varlen

from anadil.core.errors import PreflightError

# None of the four has a public name.
_for_cpu: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_for_cpu_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
_for_gpu: Any = varlen._varlen_attn  # noqa: SLF001
_for_gpu_backward: Any = varlen._varlen_attn_backward  # noqa: SLF001
OLDEST_CAPABILITY = 8
"""Compute capability of the oldest GPUs with BF16 and Flash attention, Ampere. Source: NVIDIA A100 whitepaper; torch 2.13,
`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`."""
Index = slice | torch.Tensor
Gradients = tuple[torch.Tensor | None, ...]


@torch.library.custom_op("anadil::packed_attention", mutates_args=(), device_types="cpu")
def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `attend` in one operator; also return the log of each token's sum of exponentials. Window 0 is none.

    Source: Dao 2023, "FlashAttention-2", arXiv:2307.08691, for what the backward pass needs.
    """
    attended = _like(query)
    logsumexp = query.new_empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32))
    for group in _groups(_bytes(query_borders), _bytes(key_borders)):
        part, sums = _for_cpu(
            group.queries(query), group.keys(key), group.keys(value), 0.0, group.is_causal(window),
            attn_mask=group.mask(query, window), scale=scale,
        )  # fmt: skip
        attended[group.query] = part.transpose(1, 2).flatten(0, 1)
        logsumexp[group.query] = sums.transpose(1, 2).flatten(0, 1)
    return attended, logsumexp


@packed_attention.register_kernel("cuda")
def attend_on_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `packed_attention` by Flash attention."""
    if query.is_cuda:
        check_gpu(query.device)
    borders = _on_device(query_borders, key_borders, query.device)
    # varlen_attn itself, with its second result: (-1, 0) is causal.
    attended, logsumexp, _ = _for_gpu(query, key, value, *borders, not window, scale, [window - 1, 0], True)
    return attended, logsumexp


@packed_attention.register_fake
def _(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, heads, _width = query.shape
    shape = (heads, tokens) if query.is_cuda else (tokens, heads)
    sums = query.new_empty(shape, dtype=torch.promote_types(query.dtype, torch.float32))
    return _like(query), sums


@torch.library.custom_op("anadil::packed_attention_backward", mutates_args=(), device_types="cpu")
def packed_attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attended: torch.Tensor,
    logsumexp: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value."""
    gradients = _like(query), _like(key), _like(value)
    for group in _groups(_bytes(query_borders), _bytes(key_borders)):
        parts = _for_cpu_backward(
            group.queries(gradient), group.queries(query), group.keys(key), group.keys(value),
            group.queries(attended), group.queries(logsumexp), 0.0, group.is_causal(window),
            attn_mask=group.mask(query, window), scale=scale,
        )  # fmt: skip
        for whole, part, index in zip(gradients, parts, (group.query, group.key, group.key), strict=True):
            whole[index] = part.transpose(1, 2).flatten(0, 1)
    return gradients


@packed_attention_backward.register_kernel("cuda")
def backward_on_gpu(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attended: torch.Tensor,
    logsumexp: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `packed_attention_backward` by Flash attention."""
    borders = _on_device(query_borders, key_borders, query.device)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
    sides = [window - 1, 0]
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _for_gpu_backward(
        gradient, query, key, value, attended, logsumexp, *borders, not window, no_dropout, scale, sides
    )
    return gradients


@packed_attention_backward.register_fake
def _(
    _: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _like(query), _like(key), _like(value)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, query_borders, key_borders, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(query, key, value, *output, query_borders, key_borders)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> Gradients:
    gradients = packed_attention_backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.window)
    return (*gradients, None, None, None, None)


packed_attention.register_autograd(_backward, setup_context=_keep)
OPERATOR: Any = torch.ops.anadil.packed_attention.default
"""The forward operator, for selective activation recompute, which keeps its results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Documents of one length, as one batch."""

    num: int
    num_queries: int
    num_keys: int
    query: Index
    """Where the queries are."""
    key: Index

    def is_causal(self, window: int) -> bool:
        """True if the operator's own causal mask is the right one."""
        return self.num_queries == self.num_keys and not 0 < window < self.num_keys

    def mask(self, like: torch.Tensor, window: int) -> torch.Tensor | None:
        return None if self.is_causal(window) else lower_right(self.num_queries, self.num_keys, like, window)

    def queries(self, tensor: torch.Tensor) -> torch.Tensor:
        """(tokens, heads, ...) -> (documents, heads, tokens, ...)."""
        return tensor[self.query].view(self.num, self.num_queries, *tensor.shape[1:]).transpose(1, 2)

    def keys(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self.key].view(self.num, self.num_keys, *tensor.shape[1:]).transpose(1, 2)


def lower_right(num_queries: int, num_keys: int, like: torch.Tensor, window: int = 0) -> torch.Tensor:
    """Return a mask to add to scores: the last query sees the last keys, and each before it one step less far.

    There are no fewer keys than queries. A `window` is the most keys that a query sees, itself among them; 0 for all.
    """
    hidden = torch.full((num_queries, num_keys), float("-inf"), dtype=like.dtype, device=like.device)
    last = num_keys - num_queries
    mask = hidden.triu(last + 1)
    return mask + hidden.tril(last - window) if window else mask


def _bytes(borders: torch.Tensor) -> bytes:
    """Return borders as a key of what is made of them: a batch's layers share it, a changed batch does not."""
    # On a GPU, whereto FSDP2 moves the arguments of its root, they are right and cost a wait each time.
    return borders.cpu().numpy().tobytes()


@lru_cache(maxsize=64)
def _groups(query_borders: bytes, key_borders: bytes) -> tuple[_Group, ...]:
    """Return the documents of a batch by their lengths."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    queries, keys = (np.frombuffer(each, dtype=np.int32).tolist() for each in (query_borders, key_borders))
    for (begin, end), (first, last) in zip(pairwise(queries), pairwise(keys), strict=True):
        places.setdefault((end - begin, last - first), []).append((begin, first))
    return tuple(
        _Group(
            num=len(starts), num_queries=num_queries, num_keys=num_keys,
            query=_index([begin for begin, _ in starts], num_queries),
            key=_index([first for _, first in starts], num_keys),
        )
        for (num_queries, num_keys), starts in places.items()
    )  # fmt: skip


def _index(starts: list[int], length: int) -> Index:
    """Return a slice where the stretches lie side by side, which copies nothing."""
    if all(after - before == length for before, after in pairwise(starts)):
        return slice(starts[0], starts[-1] + length)
    return (torch.tensor(starts)[:, None] + torch.arange(length)).flatten()


@lru_cache(maxsize=8)
def check_gpu(device: torch.device) -> None:
    """Refuse a GPU without BF16 products, which Flash attention does not run on."""
    major, minor = torch.cuda.get_device_capability(device)
    if major < OLDEST_CAPABILITY:
        raise PreflightError(
            f"pretrain.precision: BF16 needs a GPU of compute capability {OLDEST_CAPABILITY}.0 or more, and "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}; run on an A100 or newer, or set it to fp32"
        )


def _on_device(
    query_borders: torch.Tensor, key_borders: torch.Tensor, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Return borders on a GPU and the longest documents, without waiting for the GPU."""
    queries, longest_queries = _copied(_bytes(query_borders), device)
    keys, longest_keys = _copied(_bytes(key_borders), device)
    return queries, keys, longest_queries, longest_keys


@lru_cache(maxsize=64)
def _copied(borders: bytes, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return borders on a device and the longest document, once for all layers of a batch."""
    numbers = np.frombuffer(borders, dtype=np.int32)
    host = torch.from_numpy(numbers.copy())
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True), int(np.diff(numbers).max())
