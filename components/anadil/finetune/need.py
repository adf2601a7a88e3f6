"""Memory and time of `finetune`, for the planner and the check before a start."""

from collections.abc import Iterator

from anadil.core.format import human_bytes, human_parameters
from anadil.estimate import activations
from anadil.estimate.activations import BF16, FP32
from anadil.estimate.instances import CPU, Machine
from anadil.estimate.layout import Layout, Precision, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import Shape
from anadil.estimate.search import divisors
from anadil.estimate.stage_memory import (
    NeedRequest,
    Needs,
    StageMemory,
    fewest,
    stage_memory,
    tokens_of_files,
)
from anadil.recipe.finetune import Preference
from anadil.recipe.sections import Recipe

LEARNING_BYTES = 4 * FP32
"""Bytes of each number that learns: weight, gradient and two moments, all in FP32."""
NF4_BYTES = 0.5 + 0.127 / 8
"""Bytes of a weight in NF4, with its part of the constants. Source: QLoRA, arXiv:2305.14314, section 3."""
CONTROL_TOKENS = 5
"""Tokens of the chat format."""
LOSS_TOKENS, LOSS_ENTRIES = 4_096, 32_768
"""Size of a tile of logits in TRL's loss. Source: trl 1.16, kernels/chunked_logprob.py and trainer/utils.py."""
TILES = {"cpu": 11, "cuda": 2}
"""Tables of so many logits that are there at once: measured on a CPU, 9 to 11; on a GPU a kernel writes over them."""
MOST_NODES = 64
"""That a remedy names."""
MERGE_BYTES = 6 * 1000**3
"""Main memory that merging takes: a file of the model, and one matrix in FP32; see `finetune.write_model`."""


def need(request: NeedRequest) -> StageMemory:
    """Memory of the stage, of the model that pre-training makes."""
    return finetune_plan(request.trained, request.recipe, request.machine, request.nodes)


def flops(request: NeedRequest) -> float:
    """Floating-point operations of the stage, by the sizes of its files."""
    settings = request.recipe.finetune
    learns = request.trained.flops_per_token(0, "all" if settings.trains == "all" else "embeddings")
    return learns * settings.epochs * tokens_of_files(settings.inputs)


def finetune_memory(
    shape: Shape, recipe: Recipe, machine: Machine, *, nodes: int, devices: int, recompute: bool | None = None
) -> StageMemory:
    """Memory with a batch of the longest chats on some devices of each node.

    `recompute` says whether activations are made again; None takes what the trainer does, see `recomputes`.
    """
    if recompute is None:
        recompute = recomputes(shape, recipe, machine, nodes=nodes, devices=devices)
    on_gpu = machine.device != CPU
    trains_all = recipe.finetune.trains == "all"
    count = _all_parts if trains_all else _adapter_parts
    # Preference begins when the first step's model and optimizer are gone.
    parts = max(
        (count(shape, step, nodes * devices, on_gpu=on_gpu, recompute=recompute) for step in _steps(recipe)),
        key=lambda each: sum(each.values()),
    )
    # The first process of a node loads the model and hands out the parts of the others.
    loaded = shape.parameters * (FP32 if trains_all else BF16)
    if trains_all and nodes * devices > 1:
        loaded *= 2  # both moments, which it gathers for a checkpoint
    if recipe.finetune.quantization == "4bit":
        loaded = 0  # tensor by tensor
    elif not trains_all and recipe.trained_embeddings != "none":
        loaded *= devices  # each for itself
    host = max(loaded, MERGE_BYTES if on_gpu else 0)
    return stage_memory("finetune", parts, host, machine, nodes=nodes, devices=devices)


def recomputes(shape: Shape, recipe: Recipe, machine: Machine, *, nodes: int, devices: int) -> bool:
    """True if the trainer makes activations again in the backward pass.

    A GPU does. A CPU keeps them where they fit with room to spare: making them again takes a third of a step's time.
    """
    if machine.device != CPU:
        return True
    without = finetune_memory(shape, recipe, machine, nodes=nodes, devices=devices, recompute=False)
    return without.verdict != "fits"


def _steps(recipe: Recipe) -> Iterator[Recipe]:
    """The recipe, and as a second one its step of preference: two chats a pair, and no second model.

    The reference is computed by the model itself before it learns (`finetune.pair_trainer`).
    """
    yield recipe
    if pairs := recipe.finetune.preference:
        settings: dict[str, object] = {
            "batch_size": 2 * pairs.batch_size,
            "max_length": pairs.max_length,
            "gradient_accumulation": pairs.gradient_accumulation,
            "dropout": 0.0,
        }
        yield recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=settings)})


def finetune_plan(shape: Shape, recipe: Recipe, machine: Machine, nodes: int) -> StageMemory:
    """The fewest devices that hold it, or as many as the recipe asks for (`cluster.resources.finetune.gpus`).

    No device is without a chat of the batch.
    """
    asked = recipe.cluster.resources.get("finetune")
    if asked and asked.gpus:
        counts = [(1, asked.gpus)]
    else:
        most = 1 if machine.device == CPU else recipe.finetune.most_processes
        counts = [(1, count) for count in divisors(machine.devices)]
        counts += [(count, machine.devices) for count in range(2, nodes + 1)]
        counts = [(used, devices) for used, devices in counts if used * devices <= most]
    return fewest(
        finetune_memory(shape, recipe, machine, nodes=used, devices=devices) for used, devices in counts
    )


def _all_parts(
    shape: Shape, recipe: Recipe, devices: int, *, on_gpu: bool, recompute: bool
) -> dict[str, float]:
    """Where all weights learn it is a step of pre-training."""
    settings = recipe.finetune
    layout = Layout(
        data=devices,
        shard=devices,
        micro_batch_size=-(-settings.batch_size // devices),
        micro_batches=settings.gradient_accumulation,
        recompute="full" if recompute else "none",
    )
    memory = peak_memory(shape, layout, _work(recipe, "fp32", on_gpu=on_gpu))
    tokens = layout.micro_batch_size * settings.max_length
    # TRL's own loss, at whatever moment; the gradient of its table is among the gradients.
    loss = max(memory.parts.get("loss", 0), _loss(shape, tokens, on_gpu=on_gpu))
    return {**memory.parts, "loss": loss, "prefetched layer": float(memory.prefetched)}


def _loss(shape: Shape, tokens: int, *, on_gpu: bool) -> float:
    """Tiles of logits, and the gradient of the hidden states."""
    size, count = (BF16, TILES["cuda"]) if on_gpu else (FP32, TILES["cpu"])
    tile = min(LOSS_TOKENS, tokens) * min(LOSS_ENTRIES, shape.vocabulary)
    return count * size * tile + 2 * FP32 * tokens * shape.hidden


def _adapter_parts(
    shape: Shape, recipe: Recipe, devices: int, *, on_gpu: bool, recompute: bool
) -> dict[str, float]:
    settings = recipe.finetune
    size, rank = BF16 if on_gpu else FP32, settings.rank
    work = _work(recipe, "bf16" if on_gpu else "fp32", on_gpu=on_gpu)
    layout = Layout(recompute="full" if recompute else "none")
    tokens = -(-settings.batch_size // devices) * settings.max_length
    # A layer's seven adapters keep inputs that dropout has changed, its mask, and their own states.
    beside = 7 * rank * size
    made, made_again = (
        activations.layer_bytes(each, work, layout)
        + _adapter_inputs(each) * (size + 1 if settings.dropout else 0)
        + beside
        for each in (shape, shape.widest or shape)
    )
    matrices = shape.layers * shape.linear_matrices
    each = NF4_BYTES if settings.quantization == "4bit" else size
    frozen = (shape.parameters - matrices) * size + matrices * each
    rows = {"none": 0, "control": CONTROL_TOKENS, "all": shape.vocabulary}[recipe.trained_embeddings]
    # Two small matrices stand beside each of a layer's seven; a fused gate has one of them less.
    widths = 2 * (shape.hidden + shape.query_width) + 2 * (shape.hidden + shape.kv_width)
    if shape.linear_width:  # adapters leave experts out
        widths += (
            activations.mlp_readers(shape) + 1
        ) * shape.hidden + shape.mlp_matrices * shape.linear_width
    if shape.layer_inputs:
        widths += 2 * (shape.hidden + shape.layer_inputs)
    learning = shape.layers * rank * widths + rows * shape.embeddings / shape.vocabulary
    saved = shape.layers * (activations.saved_bytes(shape, work, layout) if recompute else made)
    saved += activations.layer_input_bytes(shape, work, layout)
    if recompute:  # other layers may read them
        saved += size * shape.shared_keys
    widest = shape.widest or shape
    gathered = shape.embeddings + shape.layer_table + 2 * widest.layer if devices > 1 else 0
    return {
        "weights": frozen / devices,
        "adapter": learning * LEARNING_BYTES / devices,
        # Rows that learn are written into a copy of each table.
        "embeddings with learnt rows": size * shape.embeddings if rows else 0,
        "gathered weights": size * gathered,
        "activations": tokens * saved,
        "recomputation": tokens * made_again if recompute else 0,
        "loss": _loss(shape, tokens, on_gpu=on_gpu),
    }


def _adapter_inputs(shape: Shape) -> float:
    """Numbers that the adapters of a layer read."""
    inputs = (5 if shape.linear_width else 3) * shape.hidden + shape.query_width + shape.linear_width
    return inputs + (shape.hidden + shape.layer_inputs) * (shape.layer_inputs > 0)


def _work(recipe: Recipe, state: Precision, *, on_gpu: bool) -> Work:
    """A step; the loss holds no logits."""
    compute: Precision = "bf16" if on_gpu else "fp32"
    return Work(sequence_length=recipe.finetune.max_length, state=state, compute=compute, kernels="torch")


def refusal(request: NeedRequest, memory: StageMemory) -> str:
    """Text of the refusal where the stage does not fit, with what fits instead."""
    shape, recipe, machine, nodes = request.trained, request.recipe, request.machine, request.nodes
    settings = recipe.finetune
    has = f"{human_bytes(memory.device_bytes)} ({machine.name}, {machine.device})"
    if pairs := settings.preference:

        def fits(preference: Preference | None, verdicts: tuple[str, ...] = ("fits",)) -> bool:
            tried = recipe.model_copy(
                update={"finetune": settings.model_copy(update={"preference": preference})}
            )
            return finetune_plan(shape, tried, machine, nodes).verdict in verdicts

        if fits(None, ("fits", "tight")):
            sizes = (
                pairs.model_copy(update={"batch_size": size}) for size in range(pairs.batch_size - 1, 0, -1)
            )
            smaller = next((each.batch_size for each in sizes if fits(each)), 0)
            remedy = f"run with --set finetune.preference.batch_size={smaller}, or " if smaller else ""
            return (
                f"finetune.preference does not fit: finetune.preference.batch_size {pairs.batch_size} pairs of "
                f"finetune.preference.max_length {pairs.max_length:,} tokens on {memory.where} need "
                f"{human_bytes(memory.total_bytes)} of a device that has {has}; {remedy}leave it out: "
                "--set finetune.preference=null"
            )
    what = "all weights of" if settings.trains == "all" else "an adapter of"
    if machine.device != CPU and memory.host_bytes > memory.host_limit_bytes:
        has += (
            f", and {human_bytes(memory.host_bytes)} of main memory of {human_bytes(memory.host_limit_bytes)}"
        )
    return (
        f"finetune does not fit: {what} {shape.name} ({human_parameters(shape.parameters)} parameters) with "
        f"finetune.batch_size {settings.batch_size} chats of finetune.max_length {settings.max_length:,} tokens "
        f"on {memory.where} needs {human_bytes(memory.total_bytes)} of a device that has {has}; "
        f"{''.join(_remedies(shape, recipe, machine, nodes))}"
        "take a smaller base.model or a larger device, or leave finetune.inputs out: --set 'finetune.inputs=[]', or end before it: --until pretrain (of run and of plan)"
    )


def _remedies(shape: Shape, recipe: Recipe, machine: Machine, nodes: int) -> Iterator[str]:
    settings = recipe.finetune

    def fits(key: str, value: object, used: int = nodes) -> bool:
        tried = recipe.model_copy(update={"finetune": settings.model_copy(update={key: value})})
        return finetune_plan(shape, tried, machine, used).verdict == "fits"

    smaller = next((size for size in range(settings.batch_size - 1, 0, -1) if fits("batch_size", size)), 0)
    if smaller:
        yield f"run with --set finetune.batch_size={smaller}, or "
    if settings.trains == "all":
        if fits("trains", "adapter"):
            yield "run with --set finetune.trains=adapter, or "
    elif machine.device != CPU and settings.quantization == "none" and fits("quantization", "4bit"):
        yield "run with --set finetune.quantization=4bit, or "
    if machine.device == CPU:
        return
    for count in range(2, MOST_NODES + 1):
        batch, used = max(settings.batch_size, count * machine.devices), max(count, nodes)
        if fits("batch_size", batch, used):
            more = f" --set cluster.nodes={count}" if count > nodes else ""
            yield f"run with --set finetune.batch_size={batch}{more}, or "
            return


NEEDS = Needs(need=need, refusal=refusal, flops=flops)
