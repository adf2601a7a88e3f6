"""What a recipe asks for, in the words of the planner."""

from math import ceil

from anadil.config import Recipe
from anadil.errors import RecipeError
from anadil.plan.layout import Layout, Work
from anadil.plan.machine import CPU, Machine
from anadil.plan.shape import Trains


def work_of(recipe: Recipe, machine: Machine, trains: Trains = "all") -> Work:
    """What a step of the recipe computes on a machine, with `auto` filled in.

    The trainer packs documents and gives attention a mask, and never holds all logits.
    """
    settings = recipe.pretrain
    on_gpu = machine.device != CPU
    compute = settings.precision
    if compute == "auto":
        compute = "bf16" if on_gpu or settings.state == "bf16" else "fp32"
    kernels = settings.kernels
    if kernels == "auto":
        kernels = "liger" if on_gpu else "torch"
    return Work(
        sequence_length=settings.sequence_length,
        trains=trains,
        state=settings.state,
        compute=compute,
        kernels=kernels,
        loss="fused",
    )


def layout_of(recipe: Recipe, machine: Machine, nodes: int) -> Layout:
    """The recipe's own layout on some machines.

    Raises:
        RecipeError: The degrees of parallelism do not divide the devices.
    """
    degrees = recipe.pretrain.parallelism
    devices = nodes * machine.devices
    model = degrees.tensor * degrees.context * degrees.pipeline
    if devices % model:
        raise RecipeError(
            f"pretrain.parallelism: tensor {degrees.tensor} x context {degrees.context} x pipeline "
            f"{degrees.pipeline} do not divide {devices} device(s) ({nodes} x {machine.name}); "
            "choose degrees whose product does, or another cluster.nodes"
        )
    data = devices // model
    if data * degrees.context % degrees.shard:
        raise RecipeError(
            f"pretrain.parallelism.shard: {degrees.shard} does not divide the {data * degrees.context} "
            f"device(s) that hold the same layers ({nodes} x {machine.name}); choose a divisor"
        )
    local = ceil(recipe.pretrain.batch_size / data)
    micro_batch = min(recipe.pretrain.micro_batch_size, local)
    return Layout(
        data=data,
        shard=degrees.shard,
        tensor=degrees.tensor,
        context=degrees.context,
        pipeline=degrees.pipeline,
        micro_batch_size=micro_batch,
        micro_batches=ceil(local / micro_batch),
        recompute=recipe.pretrain.activation_checkpointing,
    )


def hardest(recipe: Recipe) -> Trains:
    """What the phase that needs the most memory trains."""
    return "all" if any(phase.trains == "all" for phase in recipe.pretrain.phases) else "embeddings"
