"""Tokens, time and memory of `replay`, for the planner and the check before a start."""

from dataclasses import dataclass

from anadil.core.format import human_count, human_hours, short_count
from anadil.estimate.activations import BF16
from anadil.estimate.instances import CPU
from anadil.estimate.stage_memory import (
    BATCH_TOKENS,
    NeedRequest,
    Needs,
    StageMemory,
    scoring_plan,
    scoring_refusal,
    written_tokens,
)
from anadil.estimate.text_use import Basis

BASIS = Basis(phrase="as the base is to write, before cleaning", short="the recipe")
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

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        return [
            ("tokens", short_count(self.tokens)),
            ("documents at a time", human_count(self.rows)),
            ("time", human_hours(self.hours)),
            ("memory", self.memory.at()),
        ]


def cache_bytes(layers: int, kv_width: float, size: int) -> int:
    """Bytes of a token's keys and values."""
    return round(2 * layers * kv_width * size)


def batch_tokens(free_bytes: float, token_bytes: int) -> int:
    """Tokens that a GPU with so much free memory writes side by side."""
    return max(BATCH_TOKENS["cuda"], int(CACHE_SHARE * free_bytes / token_bytes))


def need(request: NeedRequest) -> ReplayNeed | None:
    """Needs of a recipe's replay on one machine; None where the base writes nothing."""
    tokens = written_tokens(request.recipe)
    if not tokens:
        return None
    shape, machine = request.base, request.machine
    memory = scoring_plan(shape, request.recipe, machine, "replay")
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


def refusal(request: NeedRequest, memory: StageMemory) -> str:
    """Text of the refusal where the stage does not fit."""
    return scoring_refusal(request.base, memory, request.machine, "or give real text in place of written_by")


NEEDS = Needs(need=need, title="Replay that the base writes", refusal=refusal)
