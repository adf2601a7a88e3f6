"""Memory of layers in `layer_memory.json`: types that mix kinds of layers.

The bytes of a layer are a sum of products of sizes. `benchmarks/plan/layers.py` finds the factors on fake tensors, with the
trainer's own code. Documents fill sequences of 1,024 tokens.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

from anadil.model.layer_sizes import LayerKind

Direction = Literal["forward", "backward"]
Factors = Mapping[str, float]
"""Product of sizes, as `hidden*mlp` -> bytes of each."""


def is_known(model_type: str, kind: LayerKind) -> bool:
    """True if the table has the kind."""
    return kind.name in _rows()[model_type]


def total(factors: Factors, kind: LayerKind) -> float:
    """Sum of products of a kind's sizes."""
    result = 0.0
    for name, factor in factors.items():
        for size in name.split("*") if name else ():
            factor *= kind.sizes[size]  # noqa: PLW2901
        result += factor
    return result


def parameters(model_type: str, kind: LayerKind) -> float:
    """Parameters of one layer."""
    return total(_rows()[model_type][kind.name]["parameters"], kind)


def mixing_numbers(model_type: str, kind: LayerKind) -> float:
    """Numbers of the matrices of attention, a convolution or a state."""
    matrices = _rows()[model_type][kind.name]["matrices"]
    of_mlp = {"hidden", "hidden*mlp", "hidden*shared", "experts*hidden"}
    return total({name: each for name, each in matrices.items() if name not in of_mlp}, kind)


def mixing_flops(model_type: str, kind: LayerKind) -> float:
    """FLOPs of a token's forward pass beside matrices: of a convolution or a state."""
    return total(_rows()[model_type][kind.name].get("flops", {}), kind)


def saved(model_type: str, kind: LayerKind, step: str) -> float:
    """Bytes of a token that a layer keeps for the backward pass."""
    return total(_step(model_type, kind, step)["saved"], kind)


@cache
def moments(
    model_type: str, kind: LayerKind, step: str, direction: Direction
) -> tuple[tuple[float, float], ...]:
    """Bytes of a token, and of the layer, at each worst moment of a pass, less the bytes at the begin of the pass.

    A second forward pass is part of the backward pass. Without one, the first forward pass has a row.
    """
    listed = _step(model_type, kind, step).get(direction, ())
    return tuple((total(token, kind), total(layer, kind)) for token, layer in listed)


def operators(model_type: str, kind: LayerKind, step: str) -> tuple[float, float]:
    """Operators of 1,024 tokens, forward and backward."""
    forward, backward = _step(model_type, kind, step)["operators"]
    return forward, backward


def _step(model_type: str, kind: LayerKind, step: str) -> Any:
    return _rows()[model_type][kind.name]["steps"][step]


@cache
def _rows() -> Any:
    file = resources.files("anadil.estimate") / "layer_memory.json"
    return json.loads(file.read_text(encoding="utf-8"))
