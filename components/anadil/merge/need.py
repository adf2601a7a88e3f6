"""Weights, disk and memory of `merge`, for the planner."""

from dataclasses import dataclass

from anadil.core.format import MIB, human_bytes, human_count, stored_bytes
from anadil.estimate.activations import BF16, FP32
from anadil.estimate.instances import CPU
from anadil.estimate.stage_memory import NeedRequest, Needs, StageMemory, scoring_plan
from anadil.recipe.merge import AUTO

BLOCK_BYTES = 64 * MIB
BLOCKS = 8
"""Blocks of FP32 numbers that are in memory at a time, whatever the model's size (`anadil.merge.weights`)."""
SHARES, WEIGHTS = 7, 4
"""Most merges that are scored to choose the share, and for each weight beside (`anadil.merge.auto`)."""


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

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        rows = [
            ("weights to read", stored_bytes(self.read_bytes)),
            ("disk", stored_bytes(self.disk_bytes)),
            ("main memory", human_bytes(self.memory_bytes)),
        ]
        if self.memory:
            rows += [
                ("merges to score, at most", human_count(self.points)),
                ("memory to score", self.memory.at()),
            ]
        return rows


def need(request: NeedRequest) -> MergeNeed | None:
    """Needs of a recipe's merge; None where nothing is merged."""
    recipe, merge = request.recipe, request.recipe.merge
    if merge is None:
        return None
    size = FP32 if request.machine.device == CPU else BF16
    written = request.trained.parameters * size
    others = {recipe.base.model, *merge.models}
    open_weights = sum(each.weight == AUTO for each in merge.add)
    shares = SHARES if merge.base_share == AUTO else min(1, open_weights)
    points = shares + WEIGHTS * open_weights
    return MergeNeed(
        read_bytes=round(written + len(others) * request.base.parameters * size),
        disk_bytes=round(written),
        memory_bytes=BLOCKS * BLOCK_BYTES,
        points=points,
        memory=scoring_plan(request.trained, recipe, request.machine, "merge") if points else None,
    )


NEEDS = Needs(need=need, title="Merge")
