"""Memory of a stage after pre-training, on the fewest devices that hold it, and on a CPU its time."""

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from anadil.artifacts import storage
from anadil.core.errors import AnadilError, PreflightError
from anadil.core.format import MIB, human_bytes, human_parameters
from anadil.core.stages import STAGES
from anadil.plan import activations
from anadil.plan.activations import BF16, FP32
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Precision, Work
from anadil.plan.memory import FIT_VERDICTS, FitVerdict, fit_verdict, outside_bytes, peak_memory
from anadil.plan.model_shape import Shape, base_shape, trained_shape
from anadil.plan.search import divisors
from anadil.plan.text_use import BYTES_PER_TOKEN, DOCUMENT_BYTES, TextUse
from anadil.recipe.finetune import Preference
from anadil.recipe.merge import AUTO, Merge
from anadil.recipe.sections import Recipe

AFTER = ("finetune", "evaluate")
"""Stages that load the model which pre-training makes."""
BATCH_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Tokens of a batch, by device, in scoring and in decoding, whichever is more (`evaluate.run`, `model.decoding`)."""
FILE_BYTES = 5 * 1000**3
"""Bytes of a file of weights, as pre-training and finetune write them."""
LOGITS = 2**25
"""Numbers of a chunk of logits in FP32 (`evaluate.bits_per_byte`); its log-probabilities are as many."""
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
"""Main memory that merging takes: a file of the model, and one matrix in FP32; see `finetune.merge`."""
REPLAY = "replay"
MAX_TOKENS = 512
"""Most tokens of a document that is no chat. Source: `reg.seq_len` in the code of arXiv:2605.26097. A small base loses its
thread with every token: that of 135M wrote well for some 100, and nonsense by 1,000."""
SHARD_DOCUMENTS = 2_048
"""Most documents of a shard: enough rows to keep a GPU busy, and minutes of work for a kill to undo."""
CACHE_SHARE = 0.5
"""Share of a GPU's free memory for the cache of decoding. A step copies that of one layer, and draws in FP64 from its logits."""
LAYER_S = 0.0005
"""Time in which the kernels of a layer are started one by one, which bounds the step of a small model. Assumption."""
MERGE = "merge"
BLOCK_BYTES = 64 * MIB
BLOCKS = 8
"""Blocks of FP32 numbers that are in memory at a time, whatever the model's size (`anadil.merge.weights`)."""
DECODE_SHARE = 0.4
"""Speed of decoding over the speed of training. Measured: 94 tokens a CPU second of 124M parameters, 82 of 135M, .27 of the peak."""
CHAT_BYTES = 212
"""Bytes of a chat in its file, where chats are short questions with answers: 234 built-in ones are 49,540 bytes."""
RETAINED_TOKENS, OWN_CHAT_TOKENS, CONTINUATIONS, SEEN_CHATS = 2_000, 24 * 96, 10, 32
"""English that each candidate is scored on, most that a candidate writes in the base's own chat format, continued texts, and
most chats of training that are asked again. Source: `anadil.evaluate`, `anadil.finetune.rows`."""
SHARES, WEIGHTS = 7, 4
"""Most merges that are scored to choose the share, and for each weight beside (`anadil.merge.auto`)."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory that one stage needs, of each device and of a machine."""

    stage: str
    nodes: int
    devices: int
    """Devices of each node."""
    parts: dict[str, int]
    """Bytes of one device by part, with what no allocator sees."""
    host_bytes: int
    """Main memory of a node while the model is loaded or written."""
    device_bytes: int
    """Memory that one device has."""
    host_limit_bytes: int
    """Main memory that goes with so many devices of a node."""
    verdict: FitVerdict

    @property
    def total_bytes(self) -> int:
        """Bytes of one device."""
        return sum(self.parts.values())

    @property
    def where(self) -> str:
        """Text such as `4 devices`, or `2 nodes of 8 devices`."""
        each = "1 device" if self.devices == 1 else f"{self.devices} devices"
        return each if self.nodes == 1 else f"{self.nodes} nodes of {each}"

    def line(self) -> str:
        """One line of what it needs."""
        need, has = human_bytes(self.total_bytes), human_bytes(self.device_bytes)
        return f"{self.stage} needs {need} of {has} on {'each of ' * (self.where != '1 device')}{self.where} ({self.verdict})"


def stage_memory(
    stage: str, parts: dict[str, float], host_bytes: float, machine: Machine, *, nodes: int, devices: int
) -> StageMemory:
    """Memory of a stage on `devices` of each of `nodes` machines, with the verdict.

    A machine without GPUs has no memory but the main memory, which `parts` count.
    """
    counted = {name: round(value) for name, value in parts.items() if value >= 0.5} | outside_bytes(machine)
    # A pod gets the share of the main memory that its GPUs are of all of the machine's.
    limit = machine.ram_bytes * min(devices, machine.devices) // machine.devices
    verdict = fit_verdict(sum(counted.values()), machine)
    return StageMemory(
        stage=stage,
        nodes=nodes,
        devices=devices,
        parts=counted,
        host_bytes=round(host_bytes),
        device_bytes=machine.memory_bytes,
        host_limit_bytes=limit,
        verdict="no" if machine.device != CPU and host_bytes > limit else verdict,
    )


def fewest(options: Iterable[StageMemory]) -> StageMemory:
    """The first that fits; else the first that fits tightly; else the last, which needs least of a device."""
    listed = list(options)
    best = min(listed, key=lambda each: FIT_VERDICTS.index(each.verdict))
    return listed[-1] if best.verdict == "no" else best


def evaluate_memory(shape: Shape, machine: Machine, devices: int, stage: str = "evaluate") -> StageMemory:
    """Memory if a model's layers are spread over some devices of a machine; `replay` takes as much, and more where there is."""
    on_gpu = machine.device != CPU
    # A file of weights is read at a time, and put where it belongs.
    host = FILE_BYTES if on_gpu else 0
    parts = evaluate_parts(shape, devices, on_gpu=on_gpu)
    return stage_memory(stage, parts, host, machine, nodes=1, devices=devices)


def evaluate_parts(shape: Shape, devices: int, *, on_gpu: bool) -> dict[str, float]:
    """Bytes of the device that has the most, by part."""
    size = BF16 if on_gpu else FP32
    tokens = BATCH_TOKENS["cuda" if on_gpu else "cpu"]
    layers = -(-shape.layers // devices)
    # Layers are not cut: one device may have one more than its part.
    more = size * max(shape.layer, shape.embedding) if devices > 1 else 0
    layer = 4 * shape.hidden + shape.query_width + 2 * shape.kv_width + 3 * shape.intermediate
    return {
        "weights": shape.parameters * size / devices + more,
        "activations": tokens * layer * size,
        "cache of decoding": tokens * layers * 2 * shape.kv_width * size,
        "logits": 2 * FP32 * LOGITS,
    }


def harness_parts(shape: Shape, devices: int, *, rows: int, context: int) -> dict[str, float]:
    """The same for a batch of lm-evaluation-harness on GPUs, with logits of `rows` rows of `context` tokens."""
    logits = rows * context * shape.vocabulary * (BF16 + FP32)  # and their log-probabilities in FP32
    return evaluate_parts(shape, devices, on_gpu=True) | {"logits": float(logits)}


def evaluate_plan(shape: Shape, recipe: Recipe, machine: Machine, stage: str = "evaluate") -> StageMemory:
    """The fewest devices that hold it, or as many as the recipe asks for (`cluster.resources.evaluate.gpus`)."""
    asked = recipe.cluster.resources.get(stage)
    counts = [asked.gpus] if asked and asked.gpus else divisors(machine.devices)
    return fewest(evaluate_memory(shape, machine, count, stage) for count in counts)


def check_evaluate_fits(shape: Shape, recipe: Recipe, machine: Machine, stage: str = "evaluate") -> str:
    """One line about the memory that `evaluate` needs, or `replay`, which writes with the base."""
    need = evaluate_plan(shape, recipe, machine, stage)
    if need.verdict == "no":
        before = "or end before it: --until pretrain (of run and of plan)"
        raise PreflightError(
            f"{stage} does not fit: {shape.name} ({human_parameters(shape.parameters)} parameters) on {need.where} of one "
            f"machine needs {human_bytes(need.total_bytes)} of a device that has {human_bytes(need.device_bytes)} "
            f"({machine.name}, {machine.device}); take a smaller base.model or a machine with more or larger devices, "
            f"{before if stage == 'evaluate' else 'or give real text in place of written_by'}"
        )
    return need.line()


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


def check_finetune_fits(shape: Shape, recipe: Recipe, machine: Machine, nodes: int = 1) -> str:
    """One line about the memory that `finetune` needs."""
    need = finetune_plan(shape, recipe, machine, nodes)
    if need.verdict == "no":
        raise PreflightError(_refusal(shape, recipe, machine, nodes, need))
    return need.line()


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
    inputs = 5 * shape.hidden + shape.query_width + shape.intermediate
    beside = inputs * (size + 1 if settings.dropout else 0) + 7 * rank * size
    made = activations.layer_bytes(shape, work, layout) + beside
    matrices = shape.layers * shape.layer_matrices
    each = NF4_BYTES if settings.quantization == "4bit" else size
    frozen = (shape.parameters - matrices) * size + matrices * each
    rows = {"none": 0, "control": CONTROL_TOKENS, "all": shape.vocabulary}[recipe.trained_embeddings]
    # Two small matrices stand beside each of a layer's seven; a fused gate has one of them less.
    widths = 2 * (shape.hidden + shape.query_width) + 2 * (shape.hidden + shape.kv_width)
    widths += (2 if shape.architecture.fused_gate else 3) * shape.hidden + 3 * shape.intermediate
    learning = shape.layers * rank * widths + rows * shape.embeddings / shape.vocabulary
    saved = activations.saved_bytes(shape, work, layout) if recompute else made
    gathered = shape.embeddings + 2 * shape.layer if devices > 1 else 0
    return {
        "weights": frozen / devices,
        "adapter": learning * LEARNING_BYTES / devices,
        # Rows that learn are written into a copy of each table.
        "embeddings with learnt rows": size * shape.embeddings if rows else 0,
        "gathered weights": size * gathered,
        "activations": tokens * shape.layers * saved,
        "recomputation": tokens * made if recompute else 0,
        "loss": _loss(shape, tokens, on_gpu=on_gpu),
    }


def _work(recipe: Recipe, state: Precision, *, on_gpu: bool) -> Work:
    """A step; the loss holds no logits."""
    compute: Precision = "bf16" if on_gpu else "fp32"
    return Work(sequence_length=recipe.finetune.max_length, state=state, compute=compute, kernels="torch")


def _refusal(shape: Shape, recipe: Recipe, machine: Machine, nodes: int, need: StageMemory) -> str:
    settings = recipe.finetune
    has = f"{human_bytes(need.device_bytes)} ({machine.name}, {machine.device})"
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
                f"finetune.preference.max_length {pairs.max_length:,} tokens on {need.where} need "
                f"{human_bytes(need.total_bytes)} of a device that has {has}; {remedy}leave it out: "
                "--set finetune.preference=null"
            )
    what = "all weights of" if settings.trains == "all" else "an adapter of"
    if machine.device != CPU and need.host_bytes > need.host_limit_bytes:
        has += f", and {human_bytes(need.host_bytes)} of main memory of {human_bytes(need.host_limit_bytes)}"
    return (
        f"finetune does not fit: {what} {shape.name} ({human_parameters(shape.parameters)} parameters) with "
        f"finetune.batch_size {settings.batch_size} chats of finetune.max_length {settings.max_length:,} tokens "
        f"on {need.where} needs {human_bytes(need.total_bytes)} of a device that has {has}; "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayNeed:
    """Needs of the stage."""

    tokens: int
    rows: int
    """Documents that are written side by side."""
    hours: float | None
    """None where the device's speed is not known, as that of a CPU."""
    memory: StageMemory
    """The least; on a GPU more documents are written side by side where there is more."""


def written_tokens(recipe: Recipe) -> int:
    """Return the tokens that the base is to write for a recipe; 0 where it writes nothing."""
    return sum(each.tokens or 0 for each in recipe.sources.values() if each.written_by)


def cache_bytes(layers: int, kv_width: int, size: int) -> int:
    """Bytes of a token's keys and values."""
    return 2 * layers * kv_width * size


def batch_tokens(free_bytes: float, token_bytes: int) -> int:
    """Tokens that a GPU with so much free memory writes side by side."""
    return max(BATCH_TOKENS["cuda"], int(CACHE_SHARE * free_bytes / token_bytes))


def replay_need(recipe: Recipe, machine: Machine) -> ReplayNeed | None:
    """Return the needs of a recipe's replay on one machine; None where the base writes nothing or is not planned."""
    tokens = written_tokens(recipe)
    if not tokens:
        return None
    try:
        shape = base_shape(recipe)
    except PreflightError:
        return None
    memory = evaluate_plan(shape, recipe, machine, REPLAY)
    on_gpu, weights = machine.device != CPU, shape.parameters * BF16 / memory.devices
    token_bytes = cache_bytes(shape.layers, shape.kv_width, BF16)
    batch = batch_tokens(machine.memory_bytes - weights, token_bytes) if on_gpu else BATCH_TOKENS["cpu"]
    rows = max(1, min(batch // MAX_TOKENS, SHARD_DOCUMENTS))
    hours = None
    if on_gpu and machine.hbm:
        # A step reads all weights and the cache, which is half full in the mean; layers on several devices wait in turn.
        read = weights * memory.devices + rows * MAX_TOKENS / 2 * token_bytes
        hours = tokens / rows * (read / machine.hbm + shape.layers * LAYER_S) / 3_600
    return ReplayNeed(tokens=tokens, rows=rows, hours=hours, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeNeed:
    """Needs of the stage."""

    read_bytes: int
    """Weights of all models, read once."""
    disk_bytes: int
    """The merged model."""
    memory_bytes: int
    """Main memory beside that of the program."""
    points: int
    """Most merges that are scored; 0 where all values are given."""
    memory: StageMemory | None
    """Memory of the device that scores them."""


def merge_need(shape: Shape, recipe: Recipe, machine: Machine) -> MergeNeed | None:
    """Return the needs of a recipe's merge; None where nothing is merged."""
    merge = recipe.merge
    if merge is None:
        return None
    size = FP32 if machine.device == CPU else BF16
    written = shape.parameters * size
    others = {recipe.base.model, *merge.models}
    try:
        read = written + len(others) * base_shape(recipe).parameters * size
    except PreflightError:
        return None
    points = _points(merge)
    return MergeNeed(
        read_bytes=round(read),
        disk_bytes=round(written),
        memory_bytes=BLOCKS * BLOCK_BYTES,
        points=points,
        memory=evaluate_plan(shape, recipe, machine, MERGE) if points else None,
    )


def _points(merge: Merge) -> int:
    open_weights = sum(each.weight == AUTO for each in merge.add)
    shares = SHARES if merge.base_share == AUTO else min(1, open_weights)
    return shares + WEIGHTS * open_weights


def stage_devices(stage: str, recipe: Recipe, machine: Machine, nodes: int) -> tuple[int, int]:
    """Nodes, and GPUs of each, that a stage takes: the fewest that hold what it loads, or all where it scales.

    Where the base model's shape cannot be read here, it is one GPU: `cluster.resources.STAGE.gpus` says another number.
    """
    if not STAGES[stage].uses_model or machine.device == CPU:
        return 1, 0
    if stage == MERGE and not (recipe.merge and recipe.merge.is_auto):
        return 1, 0  # sums of weights, as fast as the disk gives them
    if stage not in (REPLAY, MERGE, *AFTER):
        return (nodes, machine.devices) if STAGES[stage].training else (1, 1)
    return _fewest(stage, recipe.model_dump_json(), machine, nodes)


@cache  # a manifest asks for it many times, and a shape may come from the hub
def _fewest(stage: str, recipe_json: str, machine: Machine, nodes: int) -> tuple[int, int]:
    recipe = Recipe.model_validate_json(recipe_json)
    try:
        if stage == REPLAY:
            need = evaluate_plan(base_shape(recipe), recipe, machine, stage)
        else:
            # To choose its values, a merge scores the model as evaluate does.
            after = "evaluate" if stage == MERGE else stage
            (need,) = needs_after(trained_shape(recipe), recipe, machine, nodes, (after,))
    except AnadilError as error:
        log.warning(
            "%s: asks for 1 GPU, because its memory cannot be counted here (%s); "
            "cluster.resources.%s.gpus=N asks for more", stage, error, stage,
        )  # fmt: skip
        return 1, 1
    return need.nodes, need.devices


def needs_after(
    shape: Shape, recipe: Recipe, machine: Machine, nodes: int, stages: Collection[str]
) -> Iterator[StageMemory]:
    """Memory of those of some stages that load the trained model."""
    if "finetune" in stages:
        yield finetune_plan(shape, recipe, machine, nodes)
    if "evaluate" in stages:
        yield evaluate_plan(shape, recipe, machine)


def seconds_after(
    shape: Shape, recipe: Recipe, machine: Machine, uses: Collection[TextUse], stages: Collection[str]
) -> float:
    """Return the seconds of `finetune` and `evaluate` at a CPU's peak in FP32; 0 on other machines."""
    if machine.device != CPU or not machine.flops_bf16:
        return 0.0
    chats = _tokens(recipe.finetune.inputs) if "finetune" in stages else 0.0
    learns = shape.flops_per_token(0, "all" if recipe.finetune.trains == "all" else "embeddings")
    flops = learns * recipe.finetune.epochs * chats
    if "evaluate" in stages:
        candidates = 2 + (recipe.merge is not None) + bool(chats)
        tokens = _scored_tokens(recipe, uses) + _asked_tokens(recipe, chats) / DECODE_SHARE
        flops += candidates * shape.flops_per_token(0) / 3 * tokens
    return flops / machine.flops_bf16


def _scored_tokens(recipe: Recipe, uses: Collection[TextUse]) -> float:
    share, targets = recipe.clean.heldout_fraction, recipe.target_sources or ("",)
    heldout = share / (1 - share) * sum(each.tokens for each in uses if each.source in targets)
    most = recipe.clean.heldout_max_documents * DOCUMENT_BYTES / BYTES_PER_TOKEN
    return RETAINED_TOKENS + (_tokens(recipe.evaluate.heldout) or min(heldout, most))


def _asked_tokens(recipe: Recipe, chats: float) -> float:
    settings, chat = recipe.evaluate, CHAT_BYTES / BYTES_PER_TOKEN
    unseen = _tokens(settings.questions) or chats * recipe.finetune.heldout_fraction
    asked = min(settings.max_questions, unseen / chat) + min(settings.max_questions, chats / chat, SEEN_CHATS)
    return OWN_CHAT_TOKENS + (CONTINUATIONS + asked) * settings.max_new_tokens


def _tokens(files: Collection[str]) -> float:
    """Tokens of files of text or chats by their sizes, without files that are not on this machine."""
    with suppress(AnadilError):
        near = [each for each in files if "://" not in each]
        return sum(storage.sizes(near, "finetune.inputs").values()) / BYTES_PER_TOKEN
    return 0.0
