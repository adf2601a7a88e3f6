"""Memory that `evaluate` needs: one model at a time, on the fewest devices of one machine that hold it."""

from anadil.core.errors import PreflightError
from anadil.core.format import human_bytes, human_parameters
from anadil.plan.activations import BF16, FP32
from anadil.plan.instances import CPU, Machine
from anadil.plan.model_shape import Shape
from anadil.plan.search import divisors
from anadil.plan.stage_memory import StageMemory, fewest, stage_memory
from anadil.recipe.sections import Recipe

BATCH_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Tokens of a batch, by device, in scoring and in decoding, whichever is more (`evaluate.run`, `model.decoding`)."""
FILE_BYTES = 5 * 1000**3
"""Bytes of a file of weights, as pre-training and finetune write them."""
LOGITS = 2**25
"""Numbers of a chunk of logits in FP32 (`evaluate.bits_per_byte`); its log-probabilities are as many."""


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
