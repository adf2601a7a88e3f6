"""Attention over packed documents: each token sees its own document up to itself, or the last tokens of a window.

`borders` say where documents begin in the flattened tokens of a batch: int32, 0 first, the number
of tokens last, every beginning of a row included. They stay in main memory. A CPU takes document
by document, those of one length together; a GPU takes all at once by torch's variable-length Flash
attention (see `attention_operator`).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import varlen
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from anadil.core.errors import DataError, PreflightError
from anadil.model.recurrence import start_anew_at_borders

ATTENTION_NAME = "anadil"
"""Name of this attention in transformers."""
UNKNOWN = ("position_bias",)
"""Changes of the attention scores that some architectures ask for by keyword."""


def use_packed_attention(model: PreTrainedModel) -> None:
    """Let a model look back within documents alone: `model.base_model(..., borders=borders, use_cache=False)`.

    Without `borders` each row is one document. Saved configurations do not name it.
    """
    AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, no_mask)
    choose_attention(model, ATTENTION_NAME)
    start_anew_at_borders(model)


def choose_attention(model: PreTrainedModel, name: str) -> None:
    """Make a registered attention that of the model."""
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:  # noqa: SLF001  there is no public name
        raise DataError(
            f"base.model: the attention of a {model.config.model_type} model takes no document boundaries; "
            "use a Llama-like base.model"
        )


def no_mask(*_: Any, attention_mask: torch.Tensor | None = None, **__: Any) -> None:
    """Take the place of a mask, for transformers."""
    assert attention_mask is None, "borders take the place of attention_mask"


def packed_attention_forward(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, borders: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attend in one layer, as transformers calls it: (sequences, heads, tokens, width) -> (sequences, tokens, heads, width).

    Keys and values have more tokens where earlier ones are cached. `scaling` None is 1 / sqrt(head width). `others` are
    other keywords of the architecture.
    """
    assert attention_mask is None, "borders take the place of attention_mask"
    refuse_unknown(module, others)
    rows, _, length, _ = query.shape
    if borders is None:
        query_borders, key_borders = row_borders(rows, length), row_borders(rows, key.shape[2])
    else:
        query_borders = key_borders = borders
    attended = attend(
        flatten_rows(query), flatten_rows(key), flatten_rows(value), query_borders, key_borders,
        scale=scaling, window=others.get("sliding_window") or 0, cap=others.get("softcap") or 0.0,
        sinks=others.get("s_aux"),
    )  # fmt: skip
    return attended.view(rows, length, *attended.shape[1:]), None


def flatten_rows(states: torch.Tensor) -> torch.Tensor:
    """Reshape (sequences, heads, tokens, head width) to (sequences x tokens, heads, head width)."""
    return states.transpose(1, 2).flatten(0, 1)


def refuse_unknown(module: nn.Module, asked: dict[str, Any]) -> None:
    """Refuse what attention is asked for and does not do."""
    unknown = [name for name in UNKNOWN if asked.get(name) is not None]
    if module.training and asked.get("dropout"):
        unknown.append("attention_dropout")
    if unknown:
        raise DataError(
            f"base.model: its attention has {', '.join(unknown)}, which attention of packed documents does "
            "not do; use a Llama-like base.model"
        )


def row_borders(rows: int, length: int) -> torch.Tensor:
    """Return the borders of rows that are one document each."""
    return torch.arange(rows + 1, dtype=torch.int32) * length


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_borders: torch.Tensor,
    key_borders: torch.Tensor, *, scale: float | None = None, window: int = 0, cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attend within documents, (tokens, heads, head width); the last query of a document meets its last key.

    The borders say where each document's queries and keys begin; a document has no fewer keys than queries. A `window`
    is the most keys that a query sees, itself among them; 0 for all. With a `cap` scores become cap x tanh(scores / cap).
    `sinks` are scores, one for each head, of a key without a value that every query sees.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    # Flash attention of torch has no FP32, and no cap.
    if cap or (device == "cuda" and query.dtype == torch.float32):
        one_by_one: Any = attend_by_document  # the decorator hides its parameters
        by_torch: torch.Tensor = one_by_one(
            query, key, value, query_borders, key_borders, scale, window, cap, sinks
        )
        return by_torch
    if sinks is not None:
        with_sinks: torch.Tensor = _WithSinks.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            query, key, value, sinks, query_borders, key_borders, scale, window
        )
        return with_sinks
    attended: torch.Tensor = packed_attention(query, key, value, query_borders, key_borders, scale, window)[0]
    return attended


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def attend_by_document(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_borders: torch.Tensor,
    key_borders: torch.Tensor, scale: float, window: int, cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Run `attend` document by document, for GPUs in FP32 and scores with a cap."""
    pieces = []
    num_queries, num_keys = (
        [end - begin for begin, end in pairwise(borders.tolist())] for borders in (query_borders, key_borders)
    )
    # Not slices: each of them would have a gradient as large as the whole.
    parts = torch.split(query, num_queries), torch.split(key, num_keys), torch.split(value, num_keys)
    for each in zip(*parts, strict=True):
        one_query, its_keys, its_values = (part.transpose(0, 1)[None] for part in each)
        length, seen = one_query.shape[2], its_keys.shape[2]
        causal = length == seen and not 0 < window < seen
        if cap or sinks is not None:
            # Scores of a document are as many as its tokens squared: they are made again, not kept.
            one = checkpoint(
                _attend_by_scores,
                one_query,
                its_keys,
                its_values,
                window,
                scale,
                cap,
                sinks,
                use_reentrant=False,
            )
        else:
            one = nn.functional.scaled_dot_product_attention(
                one_query, its_keys, its_values, is_causal=causal, scale=scale, enable_gqa=True,
                attn_mask=None if causal else lower_right(length, seen, query, window),
            )  # fmt: skip
        pieces.append(one[0].transpose(0, 1))
    return torch.cat(pieces)


def _attend_by_scores(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, scale: float, cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Attend in one document, (1, heads, tokens, head width), with scores in FP32."""
    shared = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(shared, 1) for each in (key, value))
    mask = lower_right(query.shape[2], key.shape[2], query, window)
    scores = (query @ key.transpose(2, 3)).float() * scale
    scores = ((scores / cap).tanh() * cap if cap else scores) + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    return scores.softmax(3)[..., : key.shape[2]].to(query.dtype) @ value


class _WithSinks(torch.autograd.Function):
    """Attention with sinks out of attention without: all that changes is the sum of the exponentials."""

    # Flash attention's backward pass takes that sum and the result, and makes the chances again out of them. With those that
    # count the sink, its gradients are right too, since the sink's own value is 0.
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor,
        query_borders: torch.Tensor, key_borders: torch.Tensor, scale: float, window: int,
    ) -> torch.Tensor:  # fmt: skip
        attended, logsumexp = packed_attention(query, key, value, query_borders, key_borders, scale, window)
        sums = logsumexp.T if query.is_cuda else logsumexp  # (tokens, heads)
        with_sinks = torch.logaddexp(sums, sinks.to(sums.dtype))
        attended = attended * (sums - with_sinks).exp()[..., None].to(attended.dtype)
        whole = with_sinks.T.contiguous() if query.is_cuda else with_sinks
        ctx.save_for_backward(query, key, value, attended, whole, query_borders, key_borders, sinks)
        ctx.scale, ctx.window = scale, window
        result: torch.Tensor = attended
        return result

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        gradient = grad_outputs[0].contiguous()
        *saved, sinks = ctx.saved_tensors
        gradients = packed_attention_backward(gradient, *saved, ctx.scale, ctx.window)
        attended, sums = saved[3], saved[4].T if gradient.is_cuda else saved[4]
        chances = (sinks.to(sums.dtype) - sums).exp()
        of_sinks = -(chances * (gradient.float() * attended.float()).sum(2)).sum(0)
        return (*gradients, of_sinks.to(sinks.dtype), None, None, None, None)


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
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_borders: torch.Tensor,
    key_borders: torch.Tensor, scale: float, window: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
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
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_borders: torch.Tensor,
    key_borders: torch.Tensor, scale: float, window: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
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
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attended: torch.Tensor, logsumexp: torch.Tensor, query_borders: torch.Tensor, key_borders: torch.Tensor,
    scale: float, window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
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
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attended: torch.Tensor, logsumexp: torch.Tensor, query_borders: torch.Tensor, key_borders: torch.Tensor,
    scale: float, window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
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
