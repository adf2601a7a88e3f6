"""Number of nodes and devices that a stage takes of the machines that a recipe names."""

import logging
from collections.abc import Collection, Iterator
from functools import cache

from anadil.core.errors import AnadilError
from anadil.core.stages import STAGES
from anadil.plan.evaluating import evaluate_plan
from anadil.plan.finetuning import finetune_plan
from anadil.plan.instances import CPU, Machine
from anadil.plan.merging import MERGE
from anadil.plan.model_shape import Shape, base_shape, trained_shape
from anadil.plan.replaying import REPLAY
from anadil.plan.stage_memory import AFTER, StageMemory
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)


def stage_devices(stage: str, recipe: Recipe, machine: Machine, nodes: int) -> tuple[int, int]:
    """Nodes, and GPUs of each, that a stage takes: the fewest that hold what it loads, or all where it scales.

    Where the base model's shape cannot be read here, it is one GPU: `cluster.resources.STAGE.gpus` says another number.
    """
    if not STAGES[stage].uses_model or machine.device == CPU:
        return 1, 0
    if stage == MERGE and not (recipe.merge and recipe.merge.is_auto):
        return 1, 0  # sums of weights, as fast as the disk gives them
    if stage not in (REPLAY, MERGE, *AFTER):
        return (nodes, machine.devices) if STAGES[stage].distributed else (1, 1)
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
