"""Attention over packed documents: each token sees its own document up to itself, or the last tokens of a window.

`borders` say where documents begin in the flattened tokens of a batch: int32, 0 first, the number
of tokens last, every beginning of a row included. They stay in main memory. A CPU takes document
by document, those of one length together; a GPU takes all at once by torch's variable-length Flash
attention (see `attention_operator`).
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from anadil.core.errors import DataError
from anadil.model.attention_operator import lower_right, packed_attention

ATTENTION_NAME = "anadil"
"""Name of this attention in transformers."""
UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Changes of the attention scores that some architectures ask for by keyword."""


def use_packed_attention(model: PreTrainedModel) -> None:
    """Let a model attend within documents: `model.base_model(..., borders=borders, use_cache=False)`.

    Without `borders` each row is one document. Saved configurations do not name it.
    """
    AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, no_mask)
    choose_attention(model, ATTENTION_NAME)


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
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    borders: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
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
        scale=scaling, window=others.get("sliding_window") or 0,
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
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    *,
    scale: float | None = None,
    window: int = 0,
) -> torch.Tensor:
    """Attend within documents, (tokens, heads, head width); the last query of a document meets its last key.

    The borders say where each document's queries and keys begin; a document has no fewer keys than queries. A `window`
    is the most keys that a query sees, itself among them; 0 for all.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    # Flash attention has no FP32.
    if device == "cuda" and query.dtype == torch.float32:
        one_by_one: Any = attend_by_document  # the decorator hides its parameters
        by_torch: torch.Tensor = one_by_one(query, key, value, query_borders, key_borders, scale, window)
        return by_torch
    attended: torch.Tensor = packed_attention(query, key, value, query_borders, key_borders, scale, window)[0]
    return attended


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def attend_by_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_borders: torch.Tensor,
    key_borders: torch.Tensor,
    scale: float,
    window: int,
) -> torch.Tensor:
    """Run `attend` by torch's attention for one document, for GPUs in FP32, which Flash attention lacks."""
    pieces = []
    queries, keys = pairwise(query_borders.tolist()), pairwise(key_borders.tolist())
    for (begin, end), (first, last) in zip(queries, keys, strict=True):
        causal = end - begin == last - first and not 0 < window < last - first
        one = nn.functional.scaled_dot_product_attention(
            query[begin:end].transpose(0, 1)[None],
            key[first:last].transpose(0, 1)[None],
            value[first:last].transpose(0, 1)[None],
            attn_mask=None if causal else lower_right(end - begin, last - first, query, window),
            is_causal=causal,
            scale=scale,
            enable_gqa=True,
        )
        pieces.append(one[0].transpose(0, 1))
    return torch.cat(pieces)
