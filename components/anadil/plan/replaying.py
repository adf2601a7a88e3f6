"""Needs of the stage `replay`, in which the base writes text: tokens, memory, time."""

from dataclasses import dataclass

from anadil.core.errors import PreflightError
from anadil.plan.activations import BF16
from anadil.plan.evaluating import BATCH_TOKENS, evaluate_plan
from anadil.plan.instances import CPU, Machine
from anadil.plan.model_shape import base_shape
from anadil.plan.stage_memory import StageMemory
from anadil.recipe.sections import Recipe

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
