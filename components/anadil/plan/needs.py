"""Needs of the stages beside pre-training, as the module `need` of each stage's folder counts them.

Such a module has `need(request)`. It may have `TITLE`, the heading of rows of its own in a plan. With `refusal(request,
memory)` the memory is checked before a start, and `flops(request)` is counted in the time on a CPU. A stage that trains before
pre-training has `before(request)` instead.
"""

import logging
from collections.abc import Collection, Iterator
from functools import cache
from types import ModuleType

from anadil.core.errors import AnadilError, PreflightError
from anadil.core.stages import BEFORE_TRAINING, FLOW, STAGES, brought
from anadil.estimate.instances import CPU, Machine
from anadil.estimate.stage_memory import Need, NeedRequest, StageMemory
from anadil.plan.schema import StageNeed
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_left_out

log = logging.getLogger(__name__)


def own_needs(request: NeedRequest) -> tuple[StageNeed, ...]:
    """Needs of the stages that have rows of their own in a plan."""
    modules = {stage.name: brought(stage, "need") for stage in FLOW if "need" in stage.brings}
    return tuple(
        StageNeed(stage=name, title=module.TITLE, need=_need(module, request))
        for name, module in modules.items()
        if hasattr(module, "TITLE")
    )


def _need(module: ModuleType, request: NeedRequest) -> Need | None:
    try:
        need: Need | None = module.need(request)
    except PreflightError:  # a base that is not planned
        return None
    return need


def memory_after(request: NeedRequest, then: Collection[str]) -> tuple[StageMemory, ...]:
    """Memory of those of some stages that load the trained model."""
    modules = _modules(request, then)
    return tuple(module.need(request) for module in modules if not hasattr(module, "TITLE"))


def seconds_after(request: NeedRequest, then: Collection[str]) -> float:
    """Seconds of the stages behind pre-training at a CPU's peak in FP32; 0 on other machines."""
    peak = request.machine.flops_bf16
    if request.machine.device != CPU or not peak:
        return 0.0
    flops: float = sum(
        module.flops(request) for module in _modules(request, then) if hasattr(module, "flops")
    )
    return flops / peak


def trainings_before(request: NeedRequest) -> list[tuple[float, str]]:
    """Compute of each training before pre-training as a share of its own, and a sentence of it for the assumptions."""
    champion = request.recipe.retrain.champion if request.recipe.retrain else None
    if champion and champion.artifacts:  # a week takes what was trained before from it
        return []
    modules = _modules(request, BEFORE_TRAINING)
    return [module.before(request) for module in modules if hasattr(module, "before")]


def checked_memory(request: NeedRequest, names: Collection[str]) -> Iterator[str]:
    """One line about the memory of each of some stages that load a model; one that does not fit is refused."""
    for module in _modules(request, names):
        need = module.need(request) if hasattr(module, "refusal") else None
        if need and need.memory.verdict == "no":
            raise PreflightError(module.refusal(request, need.memory))
        if need:
            yield need.memory.line()


def _modules(request: NeedRequest, names: Collection[str]) -> list[ModuleType]:
    stages = (stage for stage in FLOW if stage.name in names and "need" in stage.brings)
    return [brought(stage, "need") for stage in stages if not is_left_out(stage, request.recipe)]


def stage_devices(stage: str, recipe: Recipe, machine: Machine, nodes: int) -> tuple[int, int]:
    """Nodes, and GPUs of each, that a stage takes: the fewest that hold what it loads, or all where it scales.

    Where the base model's shape cannot be read here, it is one GPU: `cluster.resources.STAGE.gpus` says another number.
    """
    record = STAGES[stage]
    if not record.pod.uses_model or machine.device == CPU:
        return 1, 0
    if "need" in record.brings and hasattr(brought(record, "need"), "need"):
        return _fewest(stage, recipe.model_dump_json(), machine, nodes)
    return (nodes, machine.devices) if record.training else (1, 1)


@cache  # a manifest asks for it many times, and a shape may come from the hub
def _fewest(stage: str, recipe_json: str, machine: Machine, nodes: int) -> tuple[int, int]:
    request = NeedRequest(recipe=Recipe.model_validate_json(recipe_json), machine=machine, nodes=nodes)
    try:
        need: Need | None = brought(STAGES[stage], "need").need(request)
    except AnadilError as error:
        log.warning(
            "%s: asks for 1 GPU, because its memory cannot be counted here (%s); "
            "cluster.resources.%s.gpus=N asks for more", stage, error, stage,
        )  # fmt: skip
        return 1, 1
    # A stage that loads no model computes as fast as the disk gives it what it reads.
    return (need.memory.nodes, need.memory.devices) if need and need.memory else (1, 0)
