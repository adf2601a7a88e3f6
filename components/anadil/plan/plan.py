"""Plan a run: choose a layout, then estimate memory, speed, time and cost, with the reasons."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from anadil import __version__
from anadil.core.errors import AnadilError
from anadil.core.stages import BEHIND_TRAINING
from anadil.estimate.budget import CPU_MFU_RANGE, MFU_RANGE, PhaseWork, PlanBudget, budget, checkpoint_bytes
from anadil.estimate.fit import fit_verdict, layout_fit, limit_bytes, reserved
from anadil.estimate.instances import CPU, Machine, machine, this_machine
from anadil.estimate.layout import Layout, Work, hardest, layout_of, possible_layout, work_of
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import NotPlannedError
from anadil.estimate.search import FittingLayout, LayoutRationale, SearchResult, search
from anadil.estimate.speed import GPU_STEP_SHARE, Calibration, product_flops, speed
from anadil.estimate.stage_memory import NeedRequest
from anadil.estimate.text_use import BYTES_PER_TOKEN, PlannedText, TextSize, basis_of, plan_text
from anadil.model.family_table import LAYOUTS, check_family
from anadil.plan.needs import memory_after, own_needs, seconds_after, trainings_before
from anadil.plan.schema import (
    ClusterSummary,
    LayoutOption,
    LayoutSummary,
    MemoryEstimate,
    ModelSummary,
    PhaseEstimate,
    Plan,
    SearchSummary,
)
from anadil.recipe.pretrain import Phase
from anadil.recipe.sections import Recipe

CPU_ASSUMPTIONS = (
    (
        "Speed follows from products and copies in FP32 that were timed on this CPU, and BF16 takes half their time. Training "
        "reached 50-80 % of a CPU's peak, which is the range shown until --measured replaces it."
    ),
    "Time counts finetuning and scoring too, by the sizes of their files (assumption: chats as short as the built-in ones).",
)
GPU_ASSUMPTIONS = (
    (
        "Speed is 79 % of what data sheets and measured kernels give, as one H100 reached without compile on a 1B model. With "
        "compile nothing was measured. Published runs reached 25-50 % of the peak, which is the range shown until --measured "
        "replaces it."
    ),
    "CUDA, NCCL and cuBLAS take 1.5 GiB of each device beside the allocator (assumption).",
    (
        "5 % of the rest stay free for fragmentation; up to 2 % is called tight (assumption; 1-3 % are seen with "
        "PYTORCH_ALLOC_CONF=expandable_segments:True)."
    ),
)
ASSUMPTIONS = (
    "Training waits for a checkpoint until it is in main memory, and 1 s more (assumption); the rest is written beside it.",
    "A node fails every 5,120 hours: 150 minutes on 16,384 GPUs, 8 a node, as published for Llama 3.1 405B.",
    (
        "Prices are a table with a date in this package; SageMaker, spot and training plans differ. "
        "--prices FILE overrides them."
    ),
)

ZIPF_SHARE = 0.1
"""Share of the most frequent word; that of rank r has an r-th of it, so that .1 N / n words come n times among N. Source: Shannon
1951, "Prediction and entropy of printed English". Measured on .6 M words of Azerbaijani: 433 tokens, here 600."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(NeedRequest):
    """Subject of a plan: a run of a recipe on nodes of one type, with the epochs of its text by source."""

    name: str
    calibration: Calibration | None = None
    """Rates of a finished run on such devices."""
    then: Collection[str] = BEHIND_TRAINING
    """Stages with which the run continues."""

    @property
    def work(self) -> Work:
        """A step of the phase that needs the most memory."""
        return work_of(self.recipe, self.machine, hardest(self.recipe))

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.machine.devices

    @property
    def has_speed(self) -> bool:
        """True if the device's speed is known."""
        return bool(self.machine.flops_bf16 and self.machine.hbm)

    @property
    def speed_factor(self) -> float:
        """Measured over predicted rates: in the named run, else on the GPU that was measured; 1 on a CPU."""
        if self.calibration is not None:
            return self.calibration.factor
        return 1.0 if self.machine.device == CPU else GPU_STEP_SHARE

    def fits(self, layout: Layout) -> bool:
        """True if a layout has room for a step of the hardest phase, if only tightly."""
        return layout_fit(self.trained, layout, self.work, self.machine)[1] != "no"


def request_for(
    name: str,
    recipe: Recipe,
    machine: Machine,
    nodes: int,
    text: Mapping[str, TextSize] | None,
    then: Collection[str] = BEHIND_TRAINING,
) -> PlanRequest:
    """A request in which `pretrain.max_epochs` has shortened the phases; all steps count where the text is not known."""
    recipe, planned = plan_text(recipe.as_planned, text)
    if (supported := _supported(recipe, planned)) and recipe.tokenizer.vocab_sizes == "auto":
        sized = recipe.tokenizer.model_copy(update={"vocab_sizes": (supported,)})
        recipe = recipe.model_copy(update={"tokenizer": sized})
    return PlanRequest(name=name, recipe=recipe, machine=machine, nodes=nodes, text=planned, then=then)


def _supported(recipe: Recipe, text: PlannedText) -> int:
    """Tokens that the text uses as often as one has to be; 0 where that is more than are made, or not known."""
    targets = recipe.target_sources or ("",)
    # No text has more words than tokens, which are known where its words are not.
    words = sum(each.words or each.tokens for each in text.uses if each.source in targets)
    supported = round(ZIPF_SHARE * words / recipe.tokenizer.min_uses)
    return supported if supported <= recipe.tokenizer.largest_size else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The layout that the planner chose, and where it comes from."""

    layout: Layout
    origin: Literal["recipe", "search"]
    search: SearchResult | None
    """None where the device's speed is not known."""


def choose_layout(request: PlanRequest, *, best: bool = False) -> PlanResult:
    """The recipe's own layout where it can be on these nodes and fits, else the fastest that does.

    Where none fits, it is the recipe's own, or `possible_layout`. With `best` it is the fastest in any case.
    """
    degrees = request.recipe.pretrain.parallelism
    if not best:
        check_family(
            {"model_type": request.trained.model_type}, degrees.model_dump(include=set[str](LAYOUTS))
        )
    if not request.has_speed:
        layout = layout_of(request.recipe, request.machine, request.nodes)
        return PlanResult(layout=layout, origin="recipe", search=None)
    result = search(
        request.trained,
        request.work,
        request.machine,
        request.nodes,
        request.recipe.pretrain.batch_size,
        like=Layout(prefetch=degrees.prefetch, reshard=degrees.reshard),
    )
    layout, changed = possible_layout(request.recipe, request.machine, request.nodes)
    if not result.best or (not best and not changed and request.fits(layout)):
        return PlanResult(layout=layout, origin="recipe", search=result)
    return PlanResult(layout=result.best[0].layout, origin="search", search=result)


def build_plan(request: PlanRequest, result: PlanResult) -> Plan:
    """The whole plan of a request with its layout."""
    recipe, shape, machine, nodes = request.recipe, request.trained, request.machine, request.nodes
    phases = tuple(_phase(request, result.layout, phase) for phase in recipe.pretrain.phases_left)
    costs = _budget(request, phases)
    choices = LayoutRationale(
        shape=shape, layout=result.layout, work=request.work, machine=machine, nodes=nodes
    )
    return Plan(
        version=__version__,
        recipe=request.name,
        language=recipe.language_code,
        model=ModelSummary(
            name=shape.name,
            parameters=shape.parameters,
            vocabulary=shape.vocabulary,
            base_vocabulary=request.base.vocabulary,
            layers=shape.layers,
            hidden=shape.hidden,
            tied=shape.tied,
            active_parameters=shape.parameters - shape.layers * shape.idle,
        ),
        machine=_cluster(request),
        layout=_layout(request, result.layout),
        origin=result.origin,
        text=request.text.uses,
        text_fault=request.text.fault,
        needs=own_needs(request),
        phases=phases,
        after=memory_after(request, request.then),
        search=None if result.search is None else _search(request, result.search),
        choices=choices.settings(),
        time=costs.time,
        cost=costs.cost,
        reliability=costs.reliability,
        checkpoints=costs.checkpoints,
        storage=costs.storage,
        calibration=request.calibration,
        assumptions=_assumptions(request, result.layout),
    )


def _cluster(request: PlanRequest) -> ClusterSummary:
    machine = request.machine
    return ClusterSummary(
        instance=machine.name,
        device=machine.device,
        nodes=request.nodes,
        devices=request.devices,
        memory_bytes=machine.memory_bytes,
        network_bytes_per_s=machine.network or None,
        flops_bf16=machine.flops_bf16 or None,
        price_checked=machine.checked or None,
    )


def _layout(request: PlanRequest, layout: Layout) -> LayoutSummary:
    work = request.work
    return LayoutSummary(
        layout=layout,
        state=work.state,
        kernels=work.kernels,
        precision=work.compute,
        batch_size=request.recipe.pretrain.batch_size,
        sequence_length=work.sequence_length,
    )


def _phase(request: PlanRequest, layout: Layout, phase: Phase) -> PhaseEstimate:
    work = work_of(request.recipe, request.machine, phase.trains)
    settings = request.recipe.pretrain
    tokens = phase.steps * settings.batch_size * settings.sequence_length
    estimate = PhaseEstimate(
        trains=phase.trains,
        steps=phase.steps,
        tokens=tokens,
        flops=request.trained.flops_per_token(settings.sequence_length, phase.trains) * tokens,
        memory=_memory(request, layout, work),
    )
    if not request.has_speed:
        return estimate
    rate, factor = speed(request.trained, layout, work, request.machine, request.nodes), request.speed_factor
    return replace(
        estimate,
        tokens_per_s_per_device=rate.tokens_per_s_per_device * factor,
        tokens_per_s=rate.tokens_per_s * factor,
        step_s=rate.step_s / factor,
        without_overlap_s=rate.without_overlap_s / factor,
        # A CPU's products are timed while it plans. A run that was faster than those has shown that the peak is higher.
        mfu=min(1.0, rate.mfu * factor),
        hours=tokens / (rate.tokens_per_s * factor) / 3600,
        bound=rate.bound,
        step_parts_s={name: seconds / factor for name, seconds in rate.parts_s.items()},
    )


def _memory(request: PlanRequest, layout: Layout, work: Work) -> MemoryEstimate:
    memory = peak_memory(request.trained, layout, work)
    outside = reserved(memory, request.machine)
    total = memory.allocated + sum(outside.values())
    return MemoryEstimate(
        parts=memory.parts,
        outside=outside,
        allocated_bytes=memory.allocated,
        total_bytes=total,
        limit_bytes=limit_bytes(request.machine),
        device_bytes=request.machine.memory_bytes,
        moment=memory.moment,
        stage=memory.stage,
        verdict=fit_verdict(total, request.machine),
    )


def _budget(request: PlanRequest, phases: Sequence[PhaseEstimate]) -> PlanBudget:
    settings, shape, machine = request.recipe.pretrain, request.trained, request.machine
    learning = {"all": shape.parameters, "embeddings": shape.embeddings, "new_rows": shape.embeddings}
    work = [
        PhaseWork(steps=each.steps, tokens=each.tokens, flops=each.flops, tokens_per_s=each.tokens_per_s)
        for each in phases
    ]
    trained = max(learning[phase.trains] for phase in settings.phases)
    # How far the time may be off: by what published runs reached, or by what was measured.
    measured = request.calibration
    return budget(
        work,
        machine,
        request.nodes,
        checkpoint_bytes=checkpoint_bytes(shape.parameters, trained, settings.state, settings.optimizer),
        parameters=shape.parameters,
        checkpoint_every=settings.checkpoint_every,
        keep=max(settings.keep_checkpoints, len(request.recipe.averaged_steps)) + len(settings.plateau_ends),
        epoch_tokens=request.text.epoch_tokens,
        mfu_range=None if measured else CPU_MFU_RANGE if machine.device == CPU else MFU_RANGE,
        spread=(measured.factor / measured.high, measured.factor / measured.low) if measured else (1.0, 1.0),
        share_before=sum(share for share, _ in trainings_before(request)),
        peak_flops=product_flops(machine, request.work.compute),
        after_s=seconds_after(request, request.then),
    )


def _search(request: PlanRequest, result: SearchResult) -> SearchSummary:
    best, frontier = (
        tuple(_option(request, each) for each in options) for options in (result.best, result.frontier)
    )
    return SearchSummary(
        considered=result.considered, fitting=result.fitting, seconds=round(result.seconds, 3), best=best,
        frontier=frontier,
    )  # fmt: skip


def _option(request: PlanRequest, option: FittingLayout) -> LayoutOption:
    phases = [_phase(request, option.layout, phase) for phase in request.recipe.pretrain.phases_left]
    hours = sum(phase.hours for phase in phases if phase.hours is not None)
    price = request.machine.on_demand
    return LayoutOption(
        layout=option.layout,
        total_bytes=option.total_bytes,
        verdict=option.verdict,
        tokens_per_s_per_device=option.speed.tokens_per_s_per_device * request.speed_factor,
        hours=hours,
        cost=None if price is None else price * request.nodes * hours,
    )


def _vocabulary_assumptions(request: PlanRequest) -> list[str]:
    tokenizer = request.recipe.tokenizer
    assumptions: list[str] = []
    if tokenizer.strategy not in ("extend", "replace"):
        return assumptions
    if len(tokenizer.sizes) > 1:
        assumptions.append(
            f"The vocabulary is the largest of {list(tokenizer.sizes)} (assumption: the most memory)."
        )
    if not tokenizer.sizes:
        assumptions.append(
            f"tokenizer.vocab_sizes is auto: the size is {tokenizer.largest_size:,}, the most that the corpus may "
            "support (assumption: the most memory)."
        )
    supported = _supported(request.recipe, request.text)
    about = (
        f"The text uses about {supported:,} tokens {tokenizer.min_uses} times (assumption: Zipf's law), and "
    )
    if supported and tokenizer.sizes == (supported,):
        assumptions.append(f"{about}tokenizer.vocab_sizes: auto makes no others, so as many are planned for.")
    elif supported:
        assumptions.append(
            f"{about}{tokenizer.largest_size:,} are planned for. The tokenizer takes no more than the corpus supports, unless the "
            "recipe names strategy and size, so that memory, time and cost may be less; tokenizer.vocab_sizes: auto makes no others."
        )
    return assumptions


def _assumptions(request: PlanRequest, layout: Layout) -> tuple[str, ...]:
    recipe = request.recipe
    assumptions = _vocabulary_assumptions(request)
    if not request.text.uses:
        assumptions.append(
            "The size of the text is not known, so passes over it are not counted"
            + (
                ", and time and cost count all steps, also those that pretrain.max_epochs leaves out"
                if recipe.pretrain.max_epochs
                else ""
            )
            + "; --tokens gives it."
        )
    if any(not basis_of(each.basis).counted for each in request.text.uses):
        assumptions.append(
            f"A token has {BYTES_PER_TOKEN:g} bytes of text, and cleaning drops none where there is no corpus yet "
            "(assumption: the most text, the fewest passes over it)."
        )
    left = recipe.pretrain.steps - recipe.pretrain.without_new_rows.steps
    if left and recipe.tokenizer.choice == "auto" and "base" in recipe.tokenizer.strategies:
        assumptions.append(
            f"{left:,} steps of new_rows are counted. They are left out where the base's own tokenizer is chosen, which has no "
            "new token."
        )
    assumptions += [text for _, text in trainings_before(request)]
    if layout.batch_size != recipe.pretrain.batch_size:
        assumptions.append(
            f"{recipe.pretrain.batch_size} sequences do not divide evenly over {layout.data} groups of devices; "
            f"the slowest takes {layout.micro_batch_size * layout.micro_batches}."
        )
    if request.trained.kinds:
        assumptions.append(
            "Layers with a convolution or a state are counted as transformers computes them in PyTorch, for documents that fill a "
            "sequence. No GPU has measured their speed. With pretrain.parallelism.context their memory is an upper bound."
        )
    of_machine = CPU_ASSUMPTIONS if request.machine.device == CPU else GPU_ASSUMPTIONS
    return (*assumptions, *of_machine, *ASSUMPTIONS)


def plan_as_file(
    recipe: Recipe, name: str, *, here: bool, text: Mapping[str, TextSize] | None = None
) -> dict[str, str]:
    """`plan.json` as text, by its name; nothing for a model or a machine that is not planned.

    It is for this machine (`here`) or those of `cluster`. Epochs are those of the `text`, if known.
    """
    # How many steps a retraining has follows from its text alone.
    if (not here and recipe.cluster.instance is None) or (recipe.continues_champion and not text):
        return {}
    try:
        plan = plan_of(recipe, name, here=here, text=text)
    except (AnadilError, NotPlannedError) as error:
        log.debug("no plan is written: %s", error)
        return {}
    return {"plan.json": json.dumps(plan.as_json(), indent=1, ensure_ascii=False)}


def plan_of(recipe: Recipe, name: str, *, here: bool, text: Mapping[str, TextSize] | None = None) -> Plan:
    """Plan a recipe on this machine (`here`), or on those of `cluster`."""
    kind = recipe.cluster.instance
    chosen = this_machine() if here or kind is None else machine(kind)
    request = request_for(name, recipe, chosen, 1 if here else recipe.cluster.nodes, text)
    return build_plan(request, choose_layout(request))
