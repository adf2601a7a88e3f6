"""Convolutions and recurrent states within documents: in packed sequences they start anew at every border.

transformers 5.24 lets them run over the borders of `attention.py`, and refuses its own without kernels for a GPU. So
documents are taken apart and passed to a layer as rows of a batch. Rows of a batch are padded to the longest on the
right, where neither a causal convolution nor a state looks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_causal_conv1d_available, is_flash_linear_attention_available

from anadil.model.family_table import families

SHORTEST = 0.75
"""Length of the shortest document of a batch, as a share of the longest. Chosen by us."""
CHUNK = 64
"""Tokens that the gated delta rule takes at a time, and pads documents to. Source: transformers 5.24, modeling_qwen3_5.py."""
Share = Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], torch.Tensor]
"""Runs a function of whole sequences on this process's slice of them."""


def start_anew_at_borders(model: PreTrainedModel, share: Share | None = None) -> None:
    """Let what looks back beside attention take the keyword `borders`; `share` where processes hold slices of sequences."""
    family = families().get(model.config.model_type)
    if family is None or not family.recurrent:
        return
    for layer in model.get_submodule(family.names.layers).children():
        if module := getattr(layer, family.recurrent, None):
            # That of the class, so that a second call does not wrap the first.
            module.forward = partial(_by_document, type(module).forward.__get__(module), share)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _by_document(
    forward: Callable[..., torch.Tensor], share: Share | None, hidden_states: torch.Tensor, *,
    borders: torch.Tensor | None = None, **others: Any,
) -> torch.Tensor:  # fmt: skip
    """Run a layer's part on packed sequences, (sequences, tokens, width); without borders each row is a document."""
    if borders is None:
        return forward(hidden_states, **others)
    within = partial(_within, partial(forward, **others), borders)
    return share(within, hidden_states) if share else within(hidden_states)


def _within(
    forward: Callable[..., torch.Tensor], borders: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    device, flat = hidden.device, hidden.flatten(0, 1)
    batches = _batches(borders.cpu().numpy().tobytes(), device)
    if device.type == "cuda" and is_flash_linear_attention_available() and is_causal_conv1d_available():
        # Written from the signatures of both packages, not run.
        keywords = {"cu_seq_lens_q": borders.to(device).long(), "seq_idx": batches.numbers[None]}
        return forward(flat[None], **keywords).view(hidden.shape)
    made = [
        forward(flat.index_select(0, index.flatten()).view(*index.shape, -1)).flatten(0, 1)
        for index in batches.documents
    ]
    return torch.cat(made).index_select(0, batches.places).view(hidden.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batches:
    """Documents of like length as batches."""

    documents: list[torch.Tensor]
    """By batch, where the tokens of its documents are, (documents, tokens); the last token stands for padding."""
    places: torch.Tensor
    """Where each token is in the batches, one after another."""
    numbers: torch.Tensor
    """Number of each token's document, int32."""


@lru_cache(maxsize=64)
def _batches(borders: bytes, device: torch.device) -> _Batches:
    """Return the batches of packed sequences, once for all layers."""
    starts = np.frombuffer(borders, dtype=np.int32).astype(np.int64)
    lengths = np.diff(starts)
    left = np.argsort(-lengths, kind="stable")
    documents, places, used = [], np.empty(starts[-1], dtype=np.int64), 0
    while len(left):
        longest = lengths[left[0]]
        others = lengths[left]
        is_like = (others >= SHORTEST * longest) & (-(-others // CHUNK) == -(-longest // CHUNK))
        num = int(is_like.sum())
        mine, left = left[:num], left[num:]
        inside, last = np.arange(longest), lengths[mine, None] - 1
        index = starts[mine, None] + np.minimum(inside, last)
        places[index[inside <= last]] = used + np.flatnonzero(inside <= last)
        documents.append(torch.from_numpy(index).to(device))
        used += index.size
    return _Batches(
        documents=documents,
        places=torch.from_numpy(places).to(device),
        numbers=torch.from_numpy(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)).to(device),
    )
