"""Disk and memory of `distill`, for the planner and the check before a start."""

from dataclasses import dataclass

from anadil.core.format import short_count, stored_bytes
from anadil.estimate.stage_memory import NeedRequest, Needs, StageMemory, scoring_plan, scoring_refusal
from anadil.estimate.text_use import Basis

BASIS = Basis(phrase="counted by distill", short="distill", counted=True)
ID_BYTES, SMALL_ID_BYTES, LOG_BYTES = 4, 2, 2
"""Bytes of an id, of one in a vocabulary of less than 65,536 tokens, and of a log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillNeed:
    """Needs of the stage, all sources together."""

    tokens: int
    disk_bytes: int
    memory: StageMemory

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        return [
            ("tokens", short_count(self.tokens)),
            ("disk", stored_bytes(self.disk_bytes)),
            ("memory", self.memory.at()),
        ]


def need(request: NeedRequest) -> DistillNeed | None:
    """Needs of a recipe's teacher on one machine, or None without a teacher."""
    recipe = request.recipe
    taught = [name for name, each in recipe.sources.items() if each.teacher]
    if not taught:
        return None
    tokens = sum(request.text.encoded[name].tokens for name in taught if name in request.text.encoded)
    k = recipe.pretrain.distillation.top_k
    id_bytes = SMALL_ID_BYTES if request.trained.vocabulary < 2**16 - 1 else ID_BYTES
    memory = scoring_plan(request.base, recipe, request.machine, "distill")
    return DistillNeed(tokens=tokens, disk_bytes=tokens * (id_bytes * k + LOG_BYTES * (k + 1)), memory=memory)


def refusal(request: NeedRequest, memory: StageMemory) -> str:
    """Text of the refusal where the stage does not fit."""
    return scoring_refusal(request.base, memory, request.machine, "or leave `teacher` out of the sources")


NEEDS = Needs(need=need, title="Probabilities of the base", refusal=refusal)
