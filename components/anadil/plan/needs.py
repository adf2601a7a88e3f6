"""Needs of the stages beside pre-training, as `NEEDS` in the module `need` of each stage's folder counts them."""

import logging
from collections.abc import Collection, Iterator
from functools import cache

from anadil.core.errors import AnadilError, PreflightError
from anadil.core.stage import Stage
from anadil.core.stages import BEFORE_TRAINING, FLOW, STAGES, brought
from anadil.estimate.instances import CPU, Machine
from anadil.estimate.stage_memory import Need, NeedRequest, Needs, StageMemory
from anadil.plan.schema import StageNeed
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_left_out

log = logging.getLogger(__name__)


def own_needs(request: NeedRequest) -> tuple[StageNeed, ...]:
    """Needs of the stages that have rows of their own in a plan."""
    needs = {stage.name: _of(stage) for stage in FLOW}
    return tuple(
        StageNeed(stage=name, title=each.title, need=_need(each, request))
        for name, each in needs.items()
        if each.title
    )


def _need(needs: Needs, request: NeedRequest) -> Need | None:
    try:
        return needs.need(request) if needs.need else None
    except PreflightError:  # a base that is not planned
        return None


def memory_after(request: NeedRequest, then: Collection[str]) -> tuple[StageMemory, ...]:
    """Memory of the named stages that load the trained model."""
    needs = [each.need(request) for each in _made(request, then) if each.need and not each.title]
    return tuple(need.memory for need in needs if need and need.memory)


def seconds_after(request: NeedRequest, then: Collection[str]) -> float:
    """Seconds of the stages behind pre-training at a CPU's peak in FP32; 0 on other machines."""
    peak = request.machine.flops_bf16
    if request.machine.device != CPU or not peak:
        return 0.0
    return sum(each.flops(request) for each in _made(request, then) if each.flops) / peak


def trainings_before(request: NeedRequest) -> list[tuple[float, str]]:
    """Compute of each training before pre-training as a share of its own, and a sentence of it for the assumptions."""
    champion = request.recipe.retrain.champion if request.recipe.retrain else None
    if champion and champion.artifacts:  # a week takes what was trained before from it
        return []
    return [each.before(request) for each in _made(request, BEFORE_TRAINING) if each.before]


def checked_memory(request: NeedRequest, names: Collection[str]) -> Iterator[str]:
    """One line about the memory of each of some stages that load a model; one that does not fit is refused."""
    for each in _made(request, names):
        need = each.need(request) if each.need and each.refusal else None
        if each.refusal and need and need.memory:
            if need.memory.verdict == "no":
                raise PreflightError(each.refusal(request, need.memory))
            yield need.memory.line()


def _of(stage: Stage) -> Needs:
    needs: Needs = brought(stage, "need").NEEDS if "need" in stage.brings else Needs()
    return needs


def _made(request: NeedRequest, names: Collection[str]) -> list[Needs]:
    """Needs of the named stages that the recipe runs."""
    return [_of(each) for each in FLOW if each.name in names and not is_left_out(each, request.recipe)]


def stage_devices(stage: str, recipe: Recipe, machine: Machine, nodes: int) -> tuple[int, int]:
    """Nodes, and GPUs of each, that a stage takes: the fewest that hold what it loads, or all where it scales.

    Where the base model's shape cannot be read here, it is one GPU: `cluster.resources.STAGE.gpus` says another number.
    """
    record = STAGES[stage]
    if not record.pod.uses_model or machine.device == CPU:
        return 1, 0
    if _of(record).need:
        return _fewest(stage, recipe.model_dump_json(), machine, nodes)
    return (nodes, machine.devices) if record.training else (1, 1)


@cache  # a manifest asks for it many times, and a shape may come from the hub
def _fewest(stage: str, recipe_json: str, machine: Machine, nodes: int) -> tuple[int, int]:
    request = NeedRequest(recipe=Recipe.model_validate_json(recipe_json), machine=machine, nodes=nodes)
    count = _of(STAGES[stage]).need
    try:
        need = count(request) if count else None
    except AnadilError as error:
        log.warning(
            "%s: asks for 1 GPU, because its memory cannot be counted here (%s); "
            "cluster.resources.%s.gpus=N asks for more", stage, error, stage,
        )  # fmt: skip
        return 1, 1
    # A stage that loads no model computes as fast as the disk gives it what it reads.
    return (need.memory.nodes, need.memory.devices) if need and need.memory else (1, 0)
