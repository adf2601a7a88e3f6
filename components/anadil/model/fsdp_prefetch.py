"""Prefetch of FSDP2: how many layers ahead are gathered."""

from collections.abc import Sequence
from typing import Any

from torch import nn


def gather_ahead(layers: Sequence[nn.Module], prefetch: int) -> None:
    """Let each layer, when it is gathered, start to gather the next `prefetch` ones of the same pass, after `fully_shard`."""
    # 1 is left to FSDP2, which gathers the next layer beside this one's kernels, in both passes; 0 only stops it from
    # gathering the next one early in the backward pass.
    if prefetch == 1:
        return
    changed: list[Any] = list(layers)
    for number, layer in enumerate(changed):
        layer.set_modules_to_forward_prefetch(changed[number + 1 : number + 1 + prefetch])
        before = changed[max(0, number - prefetch) : number]
        # An empty list would stand for FSDP2's own way; the layer itself is there already.
        layer.set_modules_to_backward_prefetch(before[::-1] or [layer])
