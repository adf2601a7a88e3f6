"""Disk and memory of `distill`, for the planner and the check before a start."""

from dataclasses import dataclass

from anadil.core.format import short_count, stored_bytes
from anadil.estimate.stage_memory import NeedRequest, Needs, StageMemory, scoring_plan, scoring_refusal
from anadil.recipe.pretrain import probability_bytes


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
    size = probability_bytes(recipe.pretrain.distillation.top_k, request.trained.vocabulary)
    memory = scoring_plan(request.base, recipe, request.machine, "distill")
    return DistillNeed(tokens=tokens, disk_bytes=tokens * size, memory=memory)


def refusal(request: NeedRequest, memory: StageMemory) -> str:
    """Text of the refusal where the stage does not fit."""
    return scoring_refusal(request.base, memory, request.machine, "or leave `teacher` out of the sources")


NEEDS = Needs(need=need, title="Probabilities of the base", refusal=refusal)
