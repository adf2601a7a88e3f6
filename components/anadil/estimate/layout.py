"""How devices share a training run, and what a step of it computes."""

from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

from anadil.core.errors import RecipeError
from anadil.core.format import counted
from anadil.estimate.instances import CPU, Machine
from anadil.estimate.model_shape import Shape, Trains
from anadil.recipe.pretrain import OPTIMIZERS, OptimizerFacts, Parallelism
from anadil.recipe.sections import Recipe

Recompute = Literal["none", "selective", "full"]
Kernels = Literal["liger", "torch"]
KERNELS: tuple[Kernels, ...] = get_args(Kernels)
LossKind = Literal["fused", "logits"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism and the batch of one device; the degrees multiply to the devices."""

    data: int = 1
    """Groups of devices that each work on sequences of their own."""
    shard: int = 1
    """Devices of the `data * context` ones that share parameters: 1 is DDP, all of them FSDP, fewer HSDP."""
    tensor: int = 1
    """Devices that share each matrix product; with 2 or more the norms are shared too (sequence parallel)."""
    context: int = 1
    """Devices that share each sequence."""
    pipeline: int = 1
    """Devices that share the layers."""
    micro_batch_size: int = 1
    """Sequences that go through the model at a time."""
    micro_batches: int = 1
    """Micro-batches of one optimizer step."""
    recompute: Recompute = "none"
    """Activation checkpointing."""
    prefetch: int = 1
    """Layers that FSDP gathers ahead."""
    reshard: bool = True
    """True if FSDP frees a layer after its forward pass and gathers it again; else it is kept."""

    @property
    def devices(self) -> int:
        """Devices of the whole run."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def degrees(self) -> dict[str, int]:
        """Devices by the way in which they share the model; 1 where they do not."""
        return {name: getattr(self, name) for name in ("shard", "tensor", "context", "pipeline")}

    @property
    def replicas(self) -> int:
        """Copies of the model over all devices, counted by its shards."""
        return self.data * self.context // self.shard

    @property
    def batch_size(self) -> int:
        """Sequences of one optimizer step over all devices."""
        return self.data * self.micro_batch_size * self.micro_batches

    def name(self) -> str:
        """Short text such as `FSDP 8 x TP 2, batch 14, full recompute`."""
        group = self.data * self.context
        if self.shard == 1:
            parts = [f"DDP {group}"] if group > 1 else []
        elif self.shard == group:
            parts = [f"FSDP {self.shard}"]
        else:
            parts = [f"HSDP {self.replicas} x {self.shard}"]
        degrees = (("TP", self.tensor), ("CP", self.context), ("PP", self.pipeline))
        parts += [f"{word} {degree}" for word, degree in degrees if degree > 1]
        return " x ".join(parts) or "one device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a training step, whatever the layout."""

    sequence_length: int
    """Tokens of a sequence."""
    trains: Trains = "all"
    """Parameters that learn."""
    state: Precision = "fp32"
    """Precision of weights, gradients and moments."""
    optimizer: str = "adamw"
    """Name among `OPTIMIZERS`."""
    compute: Precision = "bf16"
    """Precision of matrix products and of what is kept for the backward pass."""
    kernels: Kernels = "liger"
    """Who computes norms, rotary embeddings and the MLP's activation."""
    loss: LossKind = "fused"
    """`fused` never holds all logits; `logits` is the loss of transformers, which does."""

    @property
    def compute_bytes(self) -> int:
        """Bytes of an operand of a matrix product."""
        return 4 if self.compute == "fp32" else 2

    @property
    def state_bytes(self) -> int:
        """Bytes of a weight, of a moment, and of a gradient when devices add theirs."""
        return 4 if self.state == "fp32" else 2

    @property
    def optimizer_facts(self) -> OptimizerFacts:
        """Numbers that the optimizer keeps and moves."""
        return OPTIMIZERS[self.optimizer]


def shared_by_tensor(shape: Shape) -> dict[str, int]:
    """Counts that tensor parallelism cuts into equal parts; its degree divides all of them."""
    return {
        "attention heads": shape.heads,
        "key-value heads": int(shape.kv_heads),
        "columns of the MLP": int(shape.intermediate),
        "tokens of the vocabulary": shape.vocabulary,
    }


def cuts_evenly(sequence_length: int, *, context: int, tensor: int) -> bool:
    """True if sequences are cut into parts of one length, by context and then by sequence parallelism."""
    return sequence_length % (context * tensor) == 0


def work_of(recipe: Recipe, machine: Machine, trains: Trains = "all") -> Work:
    """The work of a step of the recipe on a machine, with `auto` filled in.

    The trainer packs documents, gives attention no mask for them, and never holds all logits.
    """
    settings = recipe.pretrain
    on_gpu = machine.device != CPU
    compute = settings.precision
    if compute == "auto":
        compute = "bf16" if on_gpu or machine.cpu_bf16 or settings.state == "bf16" else "fp32"
    kernels = settings.kernels
    if kernels == "auto":
        kernels = "liger" if on_gpu else "torch"
    return Work(
        sequence_length=settings.sequence_length,
        trains=trains,
        state=settings.state,
        optimizer=settings.optimizer,
        compute=compute,
        kernels=kernels,
        loss="fused",
    )


def possible_layout(recipe: Recipe, machine: Machine, nodes: int) -> tuple[Layout, dict[str, int | str]]:
    """The recipe's own layout; where its degrees do not divide the devices, the nearest one that does.

    That shares parameters over all devices that hold the same layers.

    Returns:
        The layout, and by recipe key what has to be set for it: nothing where it is the recipe's own.
    """
    degrees = recipe.pretrain.parallelism
    try:
        return layout_of(recipe, machine, nodes), {}
    except RecipeError:
        devices = nodes * machine.devices
    changed: dict[str, int | str] = {}
    if devices % (degrees.tensor * degrees.context * degrees.pipeline):
        changed = {name: 1 for name in ("tensor", "context", "pipeline") if getattr(degrees, name) > 1}
    degrees = degrees.model_copy(update=changed)
    shard = devices // (degrees.tensor * degrees.pipeline)
    if shard != degrees.shard:
        changed["shard"] = shard
    layout = layout_of(recipe, machine, nodes, degrees.model_copy(update={"shard": shard}))
    return layout, {f"pretrain.parallelism.{name}": degree for name, degree in changed.items()}


def layout_of(recipe: Recipe, machine: Machine, nodes: int, degrees: Parallelism | None = None) -> Layout:
    """The recipe's own layout on some machines, or that of other degrees."""
    degrees, devices = degrees or recipe.pretrain.parallelism, nodes * machine.devices
    model = degrees.tensor * degrees.context * degrees.pipeline
    if devices % model:
        raise RecipeError(
            f"pretrain.parallelism: tensor {degrees.tensor} x context {degrees.context} x pipeline "
            f"{degrees.pipeline} do not divide {counted(devices, 'device')} ({nodes} x {machine.name}); "
            "choose degrees whose product does, or another cluster.nodes"
        )
    data = devices // model
    if data * degrees.context % degrees.shard:
        raise RecipeError(
            f"pretrain.parallelism.shard: {degrees.shard} does not divide the "
            f"{counted(data * degrees.context, 'device')} that hold the same layers ({nodes} x {machine.name}); choose a divisor"
        )
    local = ceil(recipe.pretrain.batch_size / data)
    micro_batch = min(recipe.pretrain.micro_batch_size, local)
    micro_batches = ceil(local / micro_batch)
    if micro_batches < degrees.pipeline:
        lower = f"lower it to {local // degrees.pipeline}, or " if local >= degrees.pipeline else ""
        raise RecipeError(
            f"pretrain.micro_batch_size: {micro_batch} of the {local} sequences that each device's step has make "
            f"{micro_batches} micro-batches, and {degrees.pipeline} pipeline stages need as many; {lower}raise "
            "pretrain.batch_size"
        )
    return Layout(
        data=data,
        shard=degrees.shard,
        tensor=degrees.tensor,
        context=degrees.context,
        pipeline=degrees.pipeline,
        micro_batch_size=micro_batch,
        micro_batches=micro_batches,
        recompute=recipe.pretrain.activation_checkpointing,
        prefetch=degrees.prefetch,
        reshard=degrees.reshard,
    )


def hardest(recipe: Recipe) -> Trains:
    """Parameters that the phase with the highest memory trains."""
    return "all" if any(phase.trains == "all" for phase in recipe.pretrain.phases) else "embeddings"
