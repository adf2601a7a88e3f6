"""Bytes that one layer keeps for its backward pass, as its kernels write them, and bytes of the loss.

B sequences, S tokens each, h hidden width, q width of all query heads, k width of all key heads,
f width of the MLP, H heads. Every figure is per token of one device unless it says otherwise.
Derived tensor by tensor from transformers 5.23 (`modeling_*.py`) and Liger 0.8.5, and compared with
runs of the real models on fake tensors (tests/plan/test_families.py, benchmarks/plan).
"""

import math
from dataclasses import dataclass, replace
from functools import cache

from anadil.estimate import layer_memory
from anadil.estimate.layout import Layout, Work
from anadil.estimate.model_shape import Shape
from anadil.model.family_table import families
from anadil.model.layer_sizes import LayerKind

FP32 = 4
BF16 = 2
INTEGER = 8
"""Token ids, positions and labels are 64-bit."""
LOSS_CHUNK_TOKENS = 512
"""Most tokens whose logits torch's fused loss holds at a time (`anadil.model.loss`); on a CPU a large vocabulary
has fewer, which is 0.1 GB less at 100,000."""


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
    """True if FP32 weights are cast where they are used, as without sharding."""


@cache
def bytes_of(work: Work, layout: Layout) -> Bytes:
    """Precision of each number of a step.

    Sharded FP32 weights are gathered in BF16 and their gradients are summed in FP32, as
    torchtitan does; weights that are not sharded are cast by autocast.
    """
    weight, compute = work.state_bytes, work.compute_bytes
    autocast = weight > compute and layout.shard == 1
    stream = FP32 if autocast else compute
    return Bytes(weight=weight, compute=compute, stream=stream, reduce=weight, autocast=autocast)


def has_liger_layers(shape: Shape, work: Work) -> bool:
    """True if Liger's kernels compute the layers, and not the loss alone."""
    family = families().get(shape.model_type)
    return work.kernels == "liger" and family is not None and family.liger is not None


def norm_bytes(shape: Shape, work: Work, layout: Layout, readers: int, *, last: bool = False) -> float:
    """A norm and its output, which `readers` matrix products read.

    With tensor parallelism each device keeps its share of the tokens, but the gathered output. The norm before
    the output table is the `last`: its table learns in every phase.
    """
    size = bytes_of(work, layout)
    learns = work.trains == "all"
    if has_liger_layers(shape, work):
        saved = float(size.stream * shape.hidden)
    else:
        saved = _normalized(shape.hidden, size.stream, shape, work)
    return (saved + FP32) / layout.tensor + (_read(shape, size, readers) if learns or last else 0)


def normalized_states(shape: Shape, work: Work, layout: Layout) -> float:
    """Bytes that a norm keeps for the gradient of its own weight, in the precision of products."""
    if work.trains != "all":
        return 0.0
    size = FP32 if shape.architecture.norms_in_fp32 else bytes_of(work, layout).compute
    return size * shape.hidden / layout.tensor


def _normalized(width: float, size: int, shape: Shape, work: Work) -> float:
    """Torch's norm: the FP32 copy, and the normalized states where the norm's own weight learns."""
    kind = shape.architecture
    if kind.norm in ("layer", "bare"):  # torch's own makes the normalized states again
        return float((FP32 if kind.norm == "bare" else size) * width)
    if kind.norms_in_fp32:
        size = FP32
    centred = FP32 * (kind.norm == "centred")
    return float((FP32 + centred + size * (work.trains == "all")) * width)


def _read(shape: Shape, size: Bytes, readers: int) -> float:
    """Hidden states that matrix products read; autocast makes a copy for each."""
    return float(size.compute * shape.hidden * (readers if size.autocast else 1))


def entry_bytes(shape: Shape, work: Work, layout: Layout, readers: int) -> float:
    """Input of attention or the MLP: a norm's output, or the hidden states themselves."""
    if shape.architecture.norms_before:
        return norm_bytes(shape, work, layout, readers)
    return _read(shape, bytes_of(work, layout), readers) if work.trains == "all" else 0.0


def attention_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Queries, keys, values, output, log-sum-exp, norms and rotation."""
    size, kind = bytes_of(work, layout).compute, shape.architecture.head_norms
    keys = 2 * shape.kv_width * layout.context
    # Values are a part of what one matrix made, and hold all of it.
    others = shape.query_width + shape.kv_width if shape.architecture.fused_inputs else 0
    saved = (size * (shape.query_width + keys + others) + attended_bytes(shape, work, size)) / layout.tensor
    if kind != "none":
        # Rotated heads are as precise as the cosines.
        read = bytes_of(work, layout).stream if kind == "rotated" else size
        norms = _normalized(shape.query_width + shape.kv_width, read, shape, work)
        if shape.architecture.fused_inputs and shape.architecture.norm == "layer":
            norms = 0.0  # they read a part of what one matrix made
        saved += (norms + FP32 * (2 if kind == "width" else shape.heads + shape.kv_heads)) / layout.tensor
    if shape.architecture.values_normed:
        saved += FP32 * (shape.kv_width + shape.kv_heads)
    saved += rotation_bytes(shape, work, layout)
    if shape.architecture.inner_norms:  # what the last matrix reads is then the norm's
        norm = inner_norm_bytes(shape, work, layout) + size * (work.trains == "all")
        saved += shape.query_width * norm + FP32
    return saved


def attended_bytes(shape: Shape, work: Work, size: int) -> float:
    """Output of attention and log-sum-exp; with capped scores, which are made again, the output that the last matrix reads."""
    output = size * shape.query_width
    return float(output * (work.trains == "all") if shape.caps_scores else output + FP32 * shape.heads)


def score_tables(shape: Shape, work: Work, layout: Layout) -> float:
    """Bytes of capped scores of a document that fills a sequence, in its second pass, beside what it keeps and gives."""
    # Scaled scores, their tangent, that times the cap, and that with the mask; the mask itself; keys and values for each
    # head. Its gradients are not there yet, but that of its result is there twice.
    tables = work.sequence_length * (4 * FP32 * shape.heads + work.compute_bytes) / layout.context
    width = 2 * (shape.query_width - shape.kv_width) - shape.query_width / layout.context
    return work.sequence_length * (tables + work.compute_bytes * width)


def expert_size(work: Work, layout: Layout) -> int:
    """Bytes of an operand of experts' products: autocast leaves stacks alone."""
    size = bytes_of(work, layout)
    return FP32 if size.autocast else size.compute


def mixture_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Rows of the experts that a token meets, and what sorts rows by expert.

    Source: transformers 5.24, integrations/moe.py, `grouped_mm_experts_forward`.
    """
    size, learns = expert_size(work, layout), work.trains == "all"
    tables = 3 + 3 * shape.architecture.clamped_gate + learns
    rows = size * shape.chosen * (tables * shape.expert_width + (1 + learns) * shape.hidden)
    # Chances of all experts; of the chosen ones numbers, orders and scores.
    routing = FP32 * (shape.experts + 1) + (4 * INTEGER + 3 * FP32) * shape.chosen
    return rows + routing


def rotation_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Cosines and sines that a layer has for itself."""
    size, kind = bytes_of(work, layout), shape.architecture.rotation
    if kind in ("own", "own_fp32"):
        precise = kind == "own_fp32" and not _casts(size, layout)
        return 2 * (FP32 if precise else size.stream) * shape.rotary_share * shape.head_dim
    return cast_rotation(shape, work, layout)


def cast_rotation(shape: Shape, work: Work, layout: Layout) -> float:
    """Cosines and sines that FSDP casts from FP32, once for each layer."""
    size, precise = bytes_of(work, layout), shape.architecture.rotation in ("fp32", "own_fp32")
    return 2 * size.compute * shape.rotary_share * shape.head_dim if precise and _casts(size, layout) else 0.0


def shared_rotation(shape: Shape, work: Work, layout: Layout) -> float:
    """Cosines and sines that all layers share."""
    size, kind = bytes_of(work, layout), shape.architecture.rotation
    # Each layer makes its own of them, and again in its second forward pass.
    made = kind in ("own", "own_fp32") and layout.recompute == "none"
    if made or (kind in ("fp32", "own_fp32") and _casts(size, layout)):
        return 0.0
    return 2 * (FP32 if kind in ("fp32", "own_fp32") else size.stream) * shape.rotary_share * shape.head_dim


def _casts(size: Bytes, layout: Layout) -> bool:
    """True if FSDP casts weights, and with them the inputs of layers."""
    return layout.shard > 1 and size.weight > size.compute


def layer_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """One layer that keeps everything."""
    if shape.kinds:
        return _saved_of_kinds(shape, work, replace(layout, recompute="none"))
    kind, size = shape.architecture, bytes_of(work, layout).compute
    entries = entry_bytes(shape, work, layout, attention_readers(shape))
    if not (kind.parallel and kind.shared_norm):
        entries += entry_bytes(shape, work, layout, mlp_readers(shape))
    if kind.parallel and not kind.shared_norm:  # both norms keep the same states
        entries -= bytes_of(work, layout).stream * shape.hidden
    mlp = mlp_bytes(shape, work, layout) * shape.linear_width / layout.tensor
    if shape.experts:
        mlp += mixture_bytes(shape, work, layout)
        mlp += size * (shape.hidden + 1) if shape.shared else 0  # the shared one's share, and what it is of
    # A norm of what attention or the MLP gives; nothing keeps its output.
    after = (_normalized(shape.hidden, size, shape, work) + FP32) / layout.tensor
    exits = 2 * after if kind.norms_after else 0.0
    exits += gated_input_bytes(shape, work, layout)
    return entries + attention_bytes(shape, work, layout) + mlp + exits


def gated_input_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """End of a layer that gates its columns of a second table: the gate, what it lets through, and a norm."""
    if not shape.layer_inputs:
        return 0.0
    size, learns = bytes_of(work, layout).compute, work.trains == "all"
    products = size * ((2 + learns) * shape.layer_inputs + learns * shape.hidden)
    return products + _normalized(shape.hidden, size, shape, work) + FP32


def layer_input_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Columns of all layers in a second table, and the norm of what is added. Both stay until the first layer is done."""
    size = bytes_of(work, layout).stream
    return size * shape.columns + _normalized(shape.columns, size, shape, work)


def mlp_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Bytes that an MLP keeps for each column of its matrices."""
    kind, size, learns = shape.architecture.mlp, bytes_of(work, layout), work.trains == "all"
    if kind == "xielu":
        # The states it reads and their exponential; for two weights the square's half, FP32 as they are, and a difference.
        # Signs are Booleans.
        saved = (2 + learns) * size.compute + size.stream + 1
    elif kind == "gated":
        # Gate, up and (torch) the activated gate.
        saved = (2 if has_liger_layers(shape, work) else 3) * size.compute
    else:
        saved = size.compute
    # The input of the last matrix, where it learns.
    return saved + size.compute * learns + inner_norm_bytes(shape, work, layout)


def mlp_gradient_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Bytes of gradients inside an MLP of torch's kernels at their worst, for each column.

    What its last matrix read is dropped by then, where it was kept.
    """
    kind, size, learns = shape.architecture.mlp, bytes_of(work, layout), work.trains == "all"
    if kind == "xielu":
        # A second forward pass lets go of what a gradient was made from.
        copied = size.autocast and layout.recompute == "none"
        return (3 + learns) * size.stream + size.compute * (1 + copied - learns) - 1
    return size.compute * ({"gated": 3, "gelu": 2, "relu2": 4}[kind] - learns)


def inner_norm_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """Bytes that a norm in front of a last matrix keeps for each column."""
    if not shape.architecture.inner_norms:
        return 0.0
    return _normalized(1, bytes_of(work, layout).compute, shape, work)


def attention_readers(shape: Shape) -> int:
    """Matrix products that read the input of attention, with the MLP's where it is the same."""
    kind = shape.architecture
    return (1 if kind.fused_inputs else 3) + (mlp_readers(shape) if kind.parallel and kind.shared_norm else 0)


def mlp_readers(shape: Shape) -> int:
    """Matrix products that read the input of the MLP."""
    gates = 1 if shape.architecture.fused_gate or not shape.architecture.gated else 2
    if shape.experts:  # the router, and where there is a shared expert, that and its share
        return 1 + (gates + 1 if shape.shared else 0)
    return gates


def received_apart(shape: Shape, work: Work, layout: Layout) -> float:
    """Input of a layer, if `whole` counts a copy of it or nothing instead of the same tensor."""
    size = bytes_of(work, layout)
    if has_liger_layers(shape, work):
        shared = True
    elif shape.architecture.norms_before:
        kind = shape.architecture.norm
        shared = kind == "layer" or (size.stream == FP32 and kind != "centred")
    else:
        shared = work.trains == "all" and not size.autocast
    rotation = cast_rotation(shape, work, layout) if shape.architecture.rotation == "own_fp32" else 0.0
    return rotation + (0.0 if shared else size.stream * shape.hidden / layout.tensor)


def saved_bytes(shape: Shape, work: Work, layout: Layout) -> float:
    """One layer under the layout's activation checkpointing.

    Selective keeps the outputs of matrix products and attention, full only the layer's input.

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation", arXiv:2205.05198.
    """
    if shape.kinds:
        return _saved_of_kinds(shape, work, layout)
    size = bytes_of(work, layout)
    received = size.stream * shape.hidden / layout.tensor
    received += cast_rotation(shape, work, layout)
    if layout.recompute == "full":
        return received
    if layout.recompute == "none":
        return layer_bytes(shape, work, layout)
    attended = 0.0 if shape.caps_scores else attended_bytes(shape, work, size.compute)
    split = shape.query_width + 2 * shape.kv_width + (shape.mlp_matrices - 1) * shape.linear_width
    whole = (2 if shape.linear_width else 1) * shape.hidden + shape.experts + (shape.shared > 0)
    whole += shape.layer_inputs + shape.hidden * (shape.layer_inputs > 0)
    outputs = size.compute * (split / layout.tensor + whole)
    return received + outputs + attended / layout.tensor


def step_name(work: Work, layout: Layout) -> str:
    """A step's name in `layer_memory.json`."""
    size = bytes_of(work, layout)
    numerics = "autocast" if size.autocast else str(size.compute)
    return f"{numerics} {'all' if work.trains == 'all' else 'embeddings'} {layout.recompute}"


def _saved_of_kinds(shape: Shape, work: Work, layout: Layout) -> float:
    """Mean over kinds of layers."""
    return shape.mean(lambda kind: saved_of_kind(shape, kind, work, layout))


@cache
def saved_of_kind(shape: Shape, kind: LayerKind, work: Work, layout: Layout) -> float:
    """One layer of a kind under the layout's activation checkpointing."""
    times = 1 if layout.recompute == "full" else whole_sequences(kind, layout)
    others = others_keys(kind, work, layout) if layout.recompute == "none" else 0.0
    return times * layer_memory.saved(shape.model_type, kind, step_name(work, layout)) + others


def whole_sequences(kind: LayerKind, layout: Layout) -> int:
    """Upper bound of copies of a layer's bytes: convolutions and states run on whole sequences, the MLP on a slice."""
    return 1 if kind.attended else layout.context


def others_keys(kind: LayerKind, work: Work, layout: Layout) -> float:
    """Keys and values of the parts of a sequence that other devices hold."""
    return float(2 * (layout.context - 1) * bytes_of(work, layout).compute * kind.keys)


def loss_bytes(shape: Shape, layout: Layout, work: Work, tokens: float, *, forward: bool) -> float:
    """Bytes of the loss of `tokens` on this device, while it is made or (`forward` is false) in its gradient."""
    table, states, h = shape.embedding / layout.tensor, tokens * shape.hidden, shape.hidden
    size, chunk = bytes_of(work, layout), min(LOSS_CHUNK_TOKENS, tokens)
    if work.loss == "logits":
        # FP32 tables of all logits: with their log-probabilities, then with two gradients. Split by the
        # vocabulary the gradient takes one table more.
        tables = 2 if forward else 3 if layout.tensor == 1 else 4
        return tokens * tables * FP32 * shape.vocabulary / layout.tensor
    if layout.tensor > 1:
        # `summed_loss_of_rows` as a CPU has it, all in FP32; a GPU needs less. It holds the gathered states and
        # their gradient, the table's copy, its gradient and what is added to that, and the logits of a chunk.
        tables = 2 + (size.compute != FP32)
        return FP32 * (2 * tokens * h + tables * table + chunk * table / h)
    if work.kernels == "torch" and forward:
        # The engine's own loss, all in FP32: copies of states and table, both gradients, a chunk's logits.
        copies = FP32 * (states + table) if size.stream != FP32 or size.weight != FP32 else 0.0
        return copies + FP32 * (states + table) + chunk * FP32 * (table / h + h)
    if work.kernels == "torch":
        # torch's operator gives its gradients out as results, for which autograd makes zeros.
        return 2 * FP32 * (states + table)
    # Liger's: gradient of the states; that of the table in FP32, then a chunk's logits or its copy.
    logits = liger_chunk_tokens(math.ceil(tokens), h, shape.vocabulary) * size.compute * table / h
    gradient = states * (size.compute + (size.stream if size.autocast else 0))
    return (
        gradient + FP32 * table + max(size.compute * table, logits) + (BF16 * table if size.autocast else 0)
    )


def liger_chunk_tokens(tokens: int, hidden: int, vocabulary: int) -> int:
    """Tokens whose logits Liger's fused loss holds at a time: they take about as much as the hidden states.

    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py.
    """
    chunks = -(-vocabulary // hidden)
    return min(tokens, 1 << (-(-tokens // chunks) - 1).bit_length())
