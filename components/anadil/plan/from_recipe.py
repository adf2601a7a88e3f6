"""The layout and the work of a step that a recipe asks for."""

from math import ceil

from anadil.core.errors import RecipeError
from anadil.core.format import counted
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Trains
from anadil.recipe.pretrain import Parallelism
from anadil.recipe.sections import Recipe


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
