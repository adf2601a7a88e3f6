"""Seconds of one optimizer step, predicted from first principles: what bounds each of its parts.

Matrix products take their FLOPs at the share of the peak that such products reach, or their bytes
over the memory's bandwidth, whichever is longer; element-wise kernels take their bytes; what
devices send each other takes the slowest link on its way, less what runs behind computing. No
constant here was fitted to a published run; the ratio of measured to predicted is the error.

Ranks lie tensor fastest, then context, then shard, then replicas, then pipeline, as torchtitan
lays its mesh: the groups that talk most have their members side by side on one machine.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Literal

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_table, read_verified
from anadil.core.errors import RecipeError
from anadil.core.format import MIB, counted
from anadil.core.json_text import json_lines
from anadil.estimate.activations import layer_bytes, liger_chunk_tokens, step_name
from anadil.estimate.instances import CPU, LOCAL, OTHER_FORMS, Machine
from anadil.estimate.layer_memory import operators
from anadil.estimate.layout import Kernels, Layout, Precision, Recompute, Work, layout_of, work_of
from anadil.estimate.model_shape import Shape
from anadil.recipe.sections import Recipe

Bound = Literal["compute", "memory", "network"]

PRODUCT_SHARE: Mapping[str, float] = {"A100": 0.869, "H100": 0.803, "H200": 0.803, "B200": 0.776, "CPU": 1.0}
"""Share of the bf16 peak that the best of many matrix products reached.
Source: S. Bekman, "Machine Learning Engineering", maximum achievable matmul FLOPS; H200 as H100 (assumption)."""
OTHER_PRODUCT_SHARE = 0.75
"""The same for other devices. Assumption. A CPU's peak is what products reached already."""
FP32_SHARE = 1 / 16
"""Peak of fp32 products on a GPU against bf16 ones, without TF32, which torch leaves off.
Source: NVIDIA A100 data sheet, 19.5 of 312 TFLOP/s; H100 67 of 989."""
CPU_BF16_GAIN = 2.0
"""Speed-up of BF16 products on a CPU that has them: 2.0 to 2.7 in training a model of 135 million parameters."""
CPU_AMX_GAIN = 16.0
"""Peak of BF16 products of tiles against FP32 ones of vectors: 1,024 multiplications a cycle against 64. None was measured.
Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter "Intel AMX"."""
ATTENTION_SHARE: Mapping[str, float] = {"A100": 0.6}
"""Share of the bf16 peak that FlashAttention-2 reaches, torch's default.
Source: Dao 2023, arXiv:2307.08691: 50 to 73 % on an A100."""
OTHER_ATTENTION_SHARE = 0.35
"""The same on devices after the A100. Source: Shah et al. 2024, arXiv:2407.08608: 35 % on an H100."""
MEMORY_SHARE = 0.85
"""Share of the memory's bandwidth that element-wise kernels reach. Assumption; copies reach 0.9 on an H100."""
NVLINK_SHARE = 0.8
"""Share of one direction's bandwidth that large collectives reach within a machine. Assumption."""
NETWORK_SHARE = 0.8
"""The same between machines. Assumption."""
ETHERNET_BYTES_PER_S = 1.25e9
"""Between machines whose network is not known. Assumption: 10 Gb/s."""
LINK_S, HOP_S = 3e-6, 15e-6
"""Delay of one step of a ring within a machine and between two. Assumption."""
LAUNCH_S = 5e-6
"""Least time of a kernel. Assumption."""
HIDDEN_CONTEXT = 0.5
"""Share of context parallelism's gathers that runs behind attention. Assumption."""

GPU_STEP_SHARE = 0.79
"""Measured over predicted rate of a training step on a GPU, for plans without a measured run. One H100 made 44,012 tokens/s for
55,511 with Liger's kernels, 36,165 for 46,053 with torch's (Llama 3.2 1B, BF16, 4 x 2,048, without `compile`). No run with
`compile` and no other GPU was measured: the same share is assumed. Source: benchmarks/train."""

FORWARD_BYTES: Mapping[Kernels, tuple[int, int, int]] = {"torch": (84, 18, 10), "liger": (20, 4, 6)}
"""Bytes that a layer's element-wise kernels read and write per token in bf16, in units of the hidden
size, of query plus key width, and of the MLP's width. Counted from the operators: torch's norm in
fp32 is 36 a norm, Liger's 4; two residual sums are 12; rotary 18 or 4; SwiGLU 10 or 6."""
BACKWARD_BYTES: Mapping[Kernels, tuple[int, int, int]] = {"torch": (186, 36, 20), "liger": (42, 4, 10)}
"""The same backward: torch twice (input and gradient are read), Liger as its kernels do, both with
18 for the sums of gradients where one input feeds several products."""
NUM_KERNELS: Mapping[Kernels, tuple[int, int]] = {"torch": (40, 90), "liger": (12, 24)}
"""Element-wise kernels of a layer, forward and backward. Counted from the operators."""
LOGIT_BYTES = 40
"""Bytes per token and vocabulary entry of the loss of transformers: to fp32 6, log-softmax 12, its
gradient 16, back to bf16 6. Counted from the operators."""
FUSED_LOGIT_BYTES = 6
"""The same for Liger's fused loss: two reads and a write in bf16."""
FUSED_GRADIENT_BYTES = 8
"""Bytes per number of the output table and chunk: the product adds to a gradient in fp32.
Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, for the size of a chunk too."""
CPU_CHUNK_TOKENS, CPU_CHUNK_BYTES = 512, 256 * MIB
"""Most tokens of a chunk of the fused loss on a CPU, and most bytes of its FP32 logits. Source: anadil.model.loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A predicted optimizer step; seconds are those of the slowest device."""

    parts_s: dict[str, float]
    """Seconds by part; they add up to `step_s`."""
    step_s: float
    """With communication behind computing, as far as that hides it."""
    without_overlap_s: float
    """With all communication exposed."""
    tokens_per_s: float
    """Sum over all devices."""
    tokens_per_s_per_device: float
    mfu: float
    """Share of `peak_flops` that the model's own arithmetic uses; see Shape.flops_per_token."""
    bound: Bound
    """The resource that bounds the step, bubbles left out."""


def peak_flops(machine: Machine, compute: Precision) -> float:
    """FLOP/s of which MFU is a share: a GPU's dense bf16 peak, and a CPU's in the precision of its step."""
    gain = CPU_AMX_GAIN if machine.cpu_amx else CPU_BF16_GAIN
    return machine.flops_bf16 * (gain if _has_products(machine, compute) else 1)


def product_flops(machine: Machine, compute: Precision) -> float:
    """FLOP/s that products are planned at: a CPU's tiles as its vectors, since nobody has timed them here."""
    return machine.flops_bf16 * (CPU_BF16_GAIN if _has_products(machine, compute) else 1)


def _has_products(machine: Machine, compute: Precision) -> bool:
    return machine.device == CPU and machine.cpu_bf16 and compute == "bf16"


def speed(shape: Shape, layout: Layout, work: Work, machine: Machine, nodes: int) -> Speed:
    """Predicted seconds of one optimizer step and what follows from them.

    With a pipeline, seconds are those of its last stage, which also holds the output table; a bubble
    of (stages - 1) micro-batches is added. Source: Narayanan et al. 2021, arXiv:2104.04473.
    """
    if not (machine.flops_bf16 and machine.hbm):
        raise RecipeError(
            f"{machine.name}: the peak and memory bandwidth of {machine.device} are not known; "
            "describe the machine in a file for --prices"
        )
    if layout.devices != nodes * machine.devices:
        raise RecipeError(
            f"pretrain.parallelism: {layout.name()} takes {counted(layout.devices, 'device')}, but {nodes} x "
            f"{machine.name} have {nodes * machine.devices}; change the parallelism or cluster.nodes"
        )
    parts, hidden_s = _parts(shape, layout, work, machine)
    step_s = sum(parts.values())
    groups: dict[Bound, float] = {
        "compute": parts["matrix products"] + parts["attention"],
        "memory": parts["memory traffic"] + parts["optimizer"],
        "network": parts["exposed communication"],
    }
    tokens_per_s = layout.batch_size * work.sequence_length / step_s
    each, flops = tokens_per_s / layout.devices, shape.flops_per_token(work.sequence_length, work.trains)
    return Speed(
        parts_s=parts,
        step_s=step_s,
        without_overlap_s=step_s + hidden_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=each,
        mfu=each * flops / peak_flops(machine, work.compute),
        bound=max(groups, key=lambda name: groups[name]),
    )


def _parts(shape: Shape, layout: Layout, work: Work, machine: Machine) -> tuple[dict[str, float], float]:
    """Seconds by part, and those of communication that no part shows."""
    micro = _compute(
        shape, work, machine, layout.tensor, layout.context, layout.micro_batch_size, layout.recompute
    )
    micro_batches, layers = layout.micro_batches, shape.layers / layout.pipeline
    exposed, hidden = _communication(shape, layout, work, machine, micro)
    update_s, optimizer_s = _update(shape, layout, work, machine)
    matrices = layers * micro.products_s + micro.head_s
    attention = layers * micro.attention_s
    traffic = layers * micro.traffic_s + micro.loss_s + update_s
    stage = matrices + attention + traffic + exposed.per_micro_batch_s
    parts = {
        "matrix products": micro_batches * matrices,
        "attention": micro_batches * attention,
        "memory traffic": micro_batches * traffic,
        "optimizer": optimizer_s,
        "exposed communication": micro_batches * exposed.per_micro_batch_s + exposed.once_s,
        "pipeline bubble": (layout.pipeline - 1) * stage,
    }
    return parts, micro_batches * hidden.per_micro_batch_s + hidden.once_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compute:
    """Seconds of one micro-batch on one device: of a layer, and of what follows the layers."""

    products_s: float
    attention_s: float
    traffic_s: float
    forward_s: float
    """Seconds of a layer's products, attention and traffic; the rest of them is `backward_s`."""
    backward_s: float
    """Recomputation counts here."""
    head_s: float
    loss_s: float


@lru_cache(maxsize=8192)  # a search asks for the same micro-batch in many layouts
def _compute(
    shape: Shape, work: Work, machine: Machine, tensor: int, context: int, size: int, recompute: Recompute
) -> _Compute:
    tokens = size * work.sequence_length // context
    kernels = _Kernels(shape, work, machine, tensor, tokens)
    one, attend = kernels.products_s(), kernels.attention_s()
    backward_products = (2 if work.trains == "all" else 1) + (recompute == "full")
    # Five products backward for two forward: the scores are made again.
    backward_attention = 2.5 + (recompute == "full")
    there = kernels.traffic_s(backward=False)
    back = kernels.traffic_s(backward=True)
    back += there if recompute != "none" else 0.0
    head, loss = kernels.loss_s()
    return _Compute(
        products_s=(1 + backward_products) * one,
        attention_s=(1 + backward_attention) * attend,
        traffic_s=there + back,
        forward_s=one + attend + there,
        backward_s=backward_products * one + backward_attention * attend + back,
        head_s=head,
        loss_s=loss,
    )


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Seconds of kernels on one device, which has `tokens` of a micro-batch and a part in `tensor` of a layer."""

    shape: Shape
    work: Work
    machine: Machine
    tensor: int
    tokens: int

    def peak(self, shares: Mapping[str, float], other: float) -> float:
        """FLOP/s that a kind of kernel reaches."""
        machine, compute = self.machine, self.work.compute
        share = shares.get(machine.device.split()[0], other)
        slower = machine.device != CPU and compute == "fp32"
        return product_flops(machine, compute) * (FP32_SHARE if slower else 1) * share

    def product_s(self, rows: float, inner: float, columns: float) -> float:
        """One matrix product: its FLOPs or its three matrices' bytes, whichever takes longer."""
        num_bytes = self.work.compute_bytes * (rows * inner + inner * columns + rows * columns)
        flops_s = 2 * rows * inner * columns / self.peak(PRODUCT_SHARE, OTHER_PRODUCT_SHARE)
        return max(flops_s, _memory_s(num_bytes, self.machine))

    def products_s(self) -> float:
        """All matrix products of a layer in one direction; both gradients take as long again each."""
        shape = self.shape
        widths = (2, shape.query_width), (2, shape.kv_width), (shape.mlp_matrices, shape.intermediate)
        return sum(
            number * self.product_s(self.tokens, shape.hidden, width / self.tensor)
            for number, width in widths
        )

    def attention_s(self) -> float:
        """A layer's attention forward; the half above the diagonal is skipped."""
        shape = self.shape
        flops = 2 * self.work.sequence_length * shape.attends * shape.query_width / self.tensor
        # States are in FP32, whatever the precision of products.
        states = replace(self, work=replace(self.work, compute="fp32"))
        shares = ATTENTION_SHARE, OTHER_ATTENTION_SHARE
        return self.tokens * (flops / self.peak(*shares) + shape.mixing_flops / states.peak(*shares))

    def traffic_s(self, *, backward: bool) -> float:
        """A layer's element-wise kernels; with tensor parallelism the norms are shared too."""
        if self.shape.kinds:
            return self.hybrid_traffic_s(backward=backward)
        shape, kind = self.shape, self.work.kernels
        of_hidden, of_heads, of_mlp = (BACKWARD_BYTES if backward else FORWARD_BYTES)[kind]
        per_token = (
            of_hidden * shape.hidden
            + of_heads * (shape.query_width + shape.kv_width)
            + of_mlp * shape.intermediate
        )
        num_bytes = self.tokens * per_token / self.tensor * self.work.compute_bytes / 2
        return max(_memory_s(num_bytes, self.machine), NUM_KERNELS[kind][backward] * LAUNCH_S)

    def hybrid_traffic_s(self, *, backward: bool) -> float:
        """The same for the mean of several kinds of layers."""
        shape = self.shape
        # Kept bytes are written once. Backwards they are read, and as many of gradients are written and read.
        num_bytes = self.tokens * layer_bytes(shape, self.work, Layout()) * (3 if backward else 1)
        step = step_name(self.work, Layout())
        num_kernels = shape.mean(
            lambda kind: (
                operators(shape.model_type, kind, step)[backward]
                * (1 if kind.attended else self.work.sequence_length / 1_024)
            )
        )
        return max(_memory_s(num_bytes, self.machine), num_kernels * LAUNCH_S)

    def loss_s(self) -> tuple[float, float]:
        """Products of the output table in all three directions, and the memory traffic of the loss."""
        shape, tokens, machine = self.shape, self.tokens, self.machine
        columns, scale = shape.vocabulary / self.tensor, self.work.compute_bytes / 2
        if self.work.loss == "logits":
            product = self.product_s(tokens, shape.hidden, columns)
            return 3 * product, _memory_s(LOGIT_BYTES * scale * tokens * columns, machine)
        if machine.device == CPU:
            fitting = max(1, CPU_CHUNK_BYTES // (4 * shape.vocabulary))
            chunk = min(tokens, CPU_CHUNK_TOKENS, 1 << (fitting.bit_length() - 1))
        else:
            chunk = liger_chunk_tokens(tokens, shape.hidden, shape.vocabulary)
        product = self.product_s(chunk, shape.hidden, columns)
        # With few tokens, moving the table's gradient takes longer than computing it.
        gradient = max(product, _memory_s(FUSED_GRADIENT_BYTES * shape.hidden * columns, machine))
        traffic = _memory_s(FUSED_LOGIT_BYTES * scale * tokens * columns, machine)
        return tokens / chunk * (2 * product + gradient), traffic


def _memory_s(num_bytes: float, machine: Machine) -> float:
    return num_bytes / (machine.hbm * MEMORY_SHARE)


def _held(shape: Shape, layout: Layout) -> tuple[float, float]:
    """Numbers of a layer, and of all tables, of one device of the last stage before sharding."""
    tables = shape.embeddings if layout.pipeline == 1 else shape.embedding
    return shape.layer / layout.tensor, tables / layout.tensor


def _update(shape: Shape, layout: Layout, work: Work, machine: Machine) -> tuple[float, float]:
    """Weights to bf16 and gradients into their sum, each micro-batch; and the optimizer's step."""
    layer, tables = _held(shape, layout)
    weights = layer * shape.layers / layout.pipeline + tables
    trained = weights if work.trains == "all" else tables
    width, compute = work.state_bytes, work.compute_bytes
    # Read a gradient, read the sum, write the sum.
    num_bytes = trained * (compute + 2 * width)
    if compute != width:
        num_bytes += weights / layout.shard * (compute + width)
    optimizer = work.optimizer_facts.numbers_moved * width * trained / layout.shard
    return _memory_s(num_bytes, machine), _memory_s(optimizer, machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    per_micro_batch_s: float
    once_s: float


def _communication(
    shape: Shape, layout: Layout, work: Work, machine: Machine, micro: _Compute
) -> tuple[_Sent, _Sent]:
    """Communication of each micro-batch and step: the exposed part, and the part behind computing.

    Each micro-batch gathers parameters twice (kept ones once), sums gradients once; copies do once a step.
    Parameters go as bf16, gradients in the precision of the state: 4 bytes, or 2 where it is bf16.
    Source: torchtitan, where `mixed_precision_param` is bfloat16 and `mixed_precision_reduce` float32.
    """
    layers = shape.layers / layout.pipeline
    there, back, context = _within_layers(shape, layout, work, machine)
    context_s = context * (1 - HIDDEN_CONTEXT)
    forward_s, backward_s = micro.forward_s + there, micro.backward_s + back + context_s
    layer, tables = _held(shape, layout)
    width, trained = work.state_bytes, layer if work.trains == "all" else 0.0

    def ring(numbers: float, width: int) -> float:
        return _ring_s(numbers * width, layout.shard, layout.tensor, machine)

    # The tables' gather and sum have nothing to run behind, nor have the first and last of the layers.
    gather, reduce = ring(layer, work.compute_bytes), ring(trained, width)
    edges = ring(tables, work.compute_bytes) + ring(tables, width)
    whole = edges + layers * ((1 + layout.reshard) * gather + reduce)
    late = layers * (max(0.0, gather - forward_s) + max(0.0, layout.reshard * gather + reduce - backward_s))
    sharded = min(whole, edges + gather + reduce + late)
    exposed = layers * (there + back + context_s) + _edges_s(shape, layout, work, machine) + sharded

    def copies(numbers: float) -> float:
        stride = layout.tensor * layout.shard
        return 2 * _ring_s(numbers / layout.shard * width, layout.replicas, stride, machine)

    summed = copies(layers * trained)
    waits = max(0.0, summed - layers * backward_s)
    return (
        _Sent(per_micro_batch_s=exposed, once_s=copies(tables) + waits),
        _Sent(per_micro_batch_s=layers * (context - context_s) + whole - sharded, once_s=summed - waits),
    )


def _within_layers(shape: Shape, layout: Layout, work: Work, machine: Machine) -> tuple[float, float, float]:
    """Seconds of a layer's tensor-parallel sums forward and backward, and of its context's gathers.

    Two sums of the hidden states each way, each an all-gather and a reduce-scatter. The context
    gathers keys and values and sums their gradients. Full recomputation does the forward part twice.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.
    """
    again = 1 if layout.recompute == "full" else 0
    tokens = layout.micro_batch_size * work.sequence_length
    states = tokens / layout.context * shape.hidden * work.compute_bytes
    sums = 2 * 2 * _ring_s(states, layout.tensor, 1, machine)
    keys = tokens * 2 * shape.kv_width / layout.tensor * work.compute_bytes
    gathers = _ring_s(keys, layout.context, layout.tensor, machine)
    return sums, (1 + again) * sums, (2 + again) * gathers


def _edges_s(shape: Shape, layout: Layout, work: Work, machine: Machine) -> float:
    """Hidden states around the shared output table, and to and from the next stage."""
    states = (
        layout.micro_batch_size * work.sequence_length // layout.context * shape.hidden * work.compute_bytes
    )
    seconds = 2 * _ring_s(states, layout.tensor, 1, machine)
    if layout.pipeline > 1:
        # A ring of two moves half of what it is told; a stage sends all of it.
        stride = layout.devices // layout.pipeline
        seconds += 2 * _ring_s(2 * states / layout.tensor, 2, stride, machine)
    return seconds


def _ring_s(num_bytes: float, size: int, stride: int, machine: Machine) -> float:
    """Seconds of an all-gather to `num_bytes`, or a reduce-scatter of them, among `size` devices.

    Each device sends and receives all but its own share of `num_bytes`. Neighbours are `stride` ranks apart.
    Where the group crosses machines, the rings of all devices of a machine share its network.

    Source: NVIDIA nccl-tests, PERFORMANCE.md.
    """
    if size == 1 or not num_bytes:
        return 0.0
    together = min(size, max(1, machine.devices // stride))
    sent = num_bytes * (size - 1) / size
    seconds = sent / (machine.nvlink * NVLINK_SHARE) if together > 1 else 0.0
    if together == size:
        return seconds + (size - 1) * LINK_S
    rings = machine.devices / together
    crossing = sent * rings / ((machine.network or ETHERNET_BYTES_PER_S) * NETWORK_SHARE)
    machines = size / together
    return max(seconds, crossing) + (size - machines) * LINK_S + machines * HOP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured over predicted rates."""

    run: str
    """URI of the model whose training was measured."""
    machines: str
    """The machines that trained it, as its recipe and its summary say."""
    factor: float
    """Geometric mean over the phases."""
    low: float
    high: float


def calibrate(uri: str, recipe: Recipe, machine: Machine, shape: Shape) -> Calibration:
    """Calibration of a plan by the training that made a model artifact."""
    manifest = finished_manifest(uri, "model")
    ran, summary = Recipe.model_validate(manifest.recipe), read_table(uri, manifest, "training.json")
    device, devices, instance = str(summary["device"]), int(str(summary["world_size"])), ran.cluster.instance
    pairs: dict[str, tuple[object, object]] = {
        "base.model": (ran.base.model, recipe.base.model),
        "the number of parameters": (summary["parameters"], shape.parameters),
        "the device": (device, device if _is_device(device, machine) else machine.device),
        "cluster.instance": (instance, instance if not instance or machine.name == LOCAL else machine.name),
        "the number of devices on each node": (devices % machine.devices, 0),
        "precision": (summary["precision"], work_of(recipe, machine).compute),
    }
    now = asdict(work_of(recipe, machine))
    pairs |= {
        name: (value, now[name]) for name, value in asdict(work_of(ran, machine)).items() if name != "compute"
    }
    if reasons := [
        f"{name} is {was}, not {is_now}" for name, (was, is_now) in pairs.items() if was != is_now
    ]:
        raise RecipeError(
            f"--measured {uri}: {'; '.join(reasons)}; name a run of this model on such machines"
        )
    nodes, rates = devices // machine.devices, dict[int, list[float]]()
    for line in json_lines(read_verified(uri, manifest, "training.jsonl")):
        if "tokens_per_s" in line:
            rates.setdefault(line["phase"] - 1, []).append(line["tokens_per_s"])
    ratios, layout = list[float](), layout_of(ran, machine, nodes)
    for phase, lines in rates.items():
        predicted = speed(
            shape, layout, work_of(ran, machine, ran.pretrain.phases[phase].trains), machine, nodes
        )
        # Predictions count padding too. Until the first line of a phase, kernels and buffers are made.
        filled = predicted.tokens_per_s * (1 - float(str(summary["packing_waste"])))
        ratios += [median(lines[1:]) / filled] if len(lines) > 1 else []
    if not ratios:
        raise RecipeError(
            f"--measured {uri}: no phase logged two lines; name a longer run, or lower its pretrain.log_every"
        )
    machines = f"{nodes} x {instance} ({devices} x {device})" if instance else f"{devices} x {device}"
    factor = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return Calibration(run=uri, machines=machines, factor=factor, low=min(ratios), high=max(ratios))


def _is_device(name: str, machine: Machine) -> bool:
    """True if a driver's name, such as `NVIDIA A100-SXM4-40GB`, is the machine's device."""
    if CPU in (machine.device, name.upper()):
        return machine.device == name.upper()
    (kind, *size), words = machine.device.upper().split(), set(re.split(r"[^A-Z0-9]+", name.upper()))
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    return (
        kind in words
        and not OTHER_FORMS.search(name.upper())
        and (not size or not sizes or "".join(size) in sizes)
    )
