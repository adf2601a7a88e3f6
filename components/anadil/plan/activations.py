"""What one layer keeps for its backward pass, in bytes, as its kernels write it.

B sequences, S tokens each, h hidden width, q width of all query heads, k width of all key heads,
f width of the MLP, H heads. Every figure is per token of one device unless it says otherwise.
Derived tensor by tensor from transformers 5.23 (`modeling_llama.py`) and Liger 0.8.5, and
compared with runs of the real model on fake tensors (benchmarks/plan).
"""

from dataclasses import dataclass
from functools import cache

from anadil.plan.layout import Layout, Work
from anadil.plan.shape import Shape

FP32 = 4
BF16 = 2
INTEGER = 8
"""Token ids, positions and labels are 64-bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Sizes of the numbers of a step."""

    weight: int
    """A weight, a gradient and each of two moments."""
    compute: int
    """An operand of a matrix product."""
    stream: int
    """The hidden states that go from layer to layer."""
    reduce: int
    """A gradient on its way between devices."""
    autocast: bool
    """Whether FP32 weights are cast where they are used, as without sharding."""


def bytes_of(work: Work, layout: Layout) -> Bytes:
    """Which precision each number of a step has.

    Sharded FP32 weights are gathered in BF16 and their gradients are summed in FP32, as
    torchtitan does; weights that are not sharded are cast by autocast.
    """
    return _bytes(work.state, work.compute, layout.shard > 1)


@cache
def _bytes(state: str, product: str, sharded: bool) -> Bytes:
    weight = FP32 if state == "fp32" else BF16
    compute = FP32 if product == "fp32" else BF16
    autocast = weight > compute and not sharded
    return Bytes(
        weight=weight,
        compute=compute,
        stream=FP32 if autocast else compute,
        reduce=weight,
        autocast=autocast,
    )


def norm(shape: Shape, work: Work, layout: Layout, readers: int, *, last: bool = False) -> float:
    """A norm and its output, which `readers` matrix products read.

    With tensor parallelism each device keeps its share of the tokens, but the gathered output.

    Args:
        shape: The model.
        work: The training step.
        layout: How devices share it.
        readers: Matrix products that read the output.
        last: Whether it is the norm before the output table, which learns in every phase.
    """
    size = bytes_of(work, layout)
    learns = work.trains == "all"
    h = shape.hidden
    # torch: the FP32 copy, and the normalized states where the norm's own weight learns.
    kept = size.stream * h if work.kernels == "liger" else (FP32 + size.stream * learns) * h
    # Autocast makes a copy for each reader.
    output = (size.compute * h * (readers if size.autocast else 1)) if learns or last else 0
    return (kept + FP32) / layout.tensor + output


def attention(shape: Shape, work: Work, layout: Layout) -> float:
    """Queries, keys, values, output and log-sum-exp; with a mask also what the mask costs."""
    size = bytes_of(work, layout).compute
    keys = 2 * shape.kv_width * layout.context
    if work.packed:
        # transformers repeats keys and values for each query head where there is a mask.
        keys = 2 * shape.query_width * layout.context
    kept = (size * (2 * shape.query_width + keys) + FP32 * shape.heads) / layout.tensor
    # torch turns the Boolean mask into numbers in every layer, and keeps them.
    return kept + (size * work.sequence_length if work.packed else 0)


def mlp(shape: Shape, work: Work, layout: Layout) -> float:
    """Gate, up and (torch) the activated gate; their product where the next matrix learns."""
    size = bytes_of(work, layout).compute
    tables = (2 if work.kernels == "liger" else 3) + (1 if work.trains == "all" else 0)
    return tables * size * shape.intermediate / layout.tensor


def whole(shape: Shape, work: Work, layout: Layout) -> float:
    """One layer that keeps everything."""
    norms = norm(shape, work, layout, 3) + norm(shape, work, layout, 2)
    return norms + attention(shape, work, layout) + mlp(shape, work, layout)


def kept(shape: Shape, work: Work, layout: Layout) -> float:
    """One layer under the layout's activation checkpointing.

    Selective keeps the outputs of matrix products and attention, full only the layer's input.

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation", arXiv:2205.05198.
    """
    size = bytes_of(work, layout)
    entry = size.stream * shape.hidden / layout.tensor
    if layout.recompute == "full":
        return entry
    if layout.recompute == "none":
        return whole(shape, work, layout)
    split = 2 * shape.query_width + 2 * shape.kv_width + 2 * shape.intermediate
    outputs = size.compute * (split / layout.tensor + 2 * shape.hidden)
    return entry + outputs + FP32 * shape.heads / layout.tensor
