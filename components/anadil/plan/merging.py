"""Needs of the stage `merge`: what it reads and writes, and how many merges it scores to choose its values."""

from dataclasses import dataclass

from anadil.core.errors import PreflightError
from anadil.core.format import MIB
from anadil.plan.activations import BF16, FP32
from anadil.plan.evaluating import evaluate_plan
from anadil.plan.instances import CPU, Machine
from anadil.plan.model_shape import Shape, base_shape
from anadil.plan.stage_memory import StageMemory
from anadil.recipe.merge import AUTO, Merge
from anadil.recipe.sections import Recipe

MERGE = "merge"
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
