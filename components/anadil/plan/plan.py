"""A plan as one table: memory, layout, speed, time, cost and the reasons, ready for JSON."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anadil import __version__
from anadil.model.family_table import LAYOUTS, check_family
from anadil.plan.budget import Budget, Stretch, budget
from anadil.plan.calibration import Calibration
from anadil.plan.from_recipe import hardest, layout_of, possible_layout, work_of
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import Memory, peak_memory
from anadil.plan.memory_limit import limit_bytes, reserved, verdict
from anadil.plan.model_shape import Shape, base_shape, trained_shape
from anadil.plan.rationale import Chosen
from anadil.plan.reliability import checkpoint_bytes
from anadil.plan.search import Candidate, Found, search
from anadil.plan.speed import Speed, speed
from anadil.recipe.pretrain import Phase
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

Table = dict[str, Any]

OUTSIDE_ASSUMPTION = "CUDA, NCCL and cuBLAS take 1.5 GiB of each device beside the allocator (assumption)."
FRAGMENTATION_ASSUMPTION = (
    "5 % of the rest stay free for fragmentation; up to 2 % is called tight (assumption; 1-3 % are seen with "
    "PYTORCH_ALLOC_CONF=expandable_segments:True)."
)
SPEED_ASSUMPTION = (
    "Speed follows from data sheets and measured kernels, not from this machine; published runs reached 25-50 % "
    "of the peak, which is the range shown until --measure replaces it."
)
PRICE_ASSUMPTION = (
    "Prices are a table with a date in this package; SageMaker, spot and training plans differ. "
    "--prices FILE overrides them."
)
ASSUMPTIONS = (
    "Training waits for a checkpoint until it is in main memory, and 1 s more (assumption); the rest is written beside it.",
    "A node fails every 5,120 hours: 150 minutes on 16,384 GPUs, 8 a node, as published for Llama 3.1 405B.",
    SPEED_ASSUMPTION,
    PRICE_ASSUMPTION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned: a run of a recipe on machines."""

    name: str
    recipe: Recipe
    machine: Machine
    nodes: int
    epoch_tokens: int | None = None
    """Tokens of one pass over the corpus; None if not known."""
    calibration: Calibration | None = None
    """What short runs on such a device have shown."""

    @property
    def shape(self) -> Shape:
        """The model that is trained."""
        return trained_shape(self.recipe)

    @property
    def work(self) -> Work:
        """A step of the phase that needs the most memory."""
        return work_of(self.recipe, self.machine, hardest(self.recipe))

    @property
    def devices(self) -> int:
        """Of all machines."""
        return self.nodes * self.machine.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The layout of a plan, and where it comes from."""

    layout: Layout
    origin: str
    """`recipe` or `search`."""
    found: Found | None
    """None where the machine's speed is not known."""


def answer(question: Question, *, best: bool = False) -> Answer:
    """The recipe's own layout where it can be on these machines and fits, else the fastest that does.

    Where none fits, it is the recipe's own, or `possible_layout`.

    Args:
        question: What is planned.
        best: Take the fastest in any case.

    Raises:
        PreflightError: The recipe's own layout is not proven for the model's type.
        RecipeError: The recipe's degrees do not divide the devices, whose speed is not known.
    """
    found, degrees = None, question.recipe.pretrain.parallelism
    if not best:
        check_family({"model_type": question.shape.model_type}, degrees.model_dump(include=set[str](LAYOUTS)))
    if question.machine.flops_bf16 and question.machine.hbm:
        found = search(
            question.shape,
            question.work,
            question.machine,
            question.nodes,
            question.recipe.pretrain.batch_size,
            like=Layout(prefetch=degrees.prefetch, reshard=degrees.reshard),
        )
    if found is None:
        own = layout_of(question.recipe, question.machine, question.nodes)
        return Answer(layout=own, origin="recipe", found=None)
    own, changed = possible_layout(question.recipe, question.machine, question.nodes)
    fits = not changed and _memory(question, own, question.work)["verdict"] != "no"
    if not found.best or (fits and not best):
        return Answer(layout=own, origin="recipe", found=found)
    return Answer(layout=found.best[0].layout, origin="search", found=found)


def plan_of(question: Question, chosen: Answer, exact: Table | None = None) -> Table:
    """The whole plan.

    Args:
        question: What is planned.
        chosen: Its layout.
        exact: What a run on fake tensors has shown, see `anadil.cli.calibrate.fake_run`.
    """
    phases = [_phase(question, chosen.layout, phase) for phase in question.recipe.pretrain.phases]
    told = _budget(question, phases).as_dict()
    return {
        "version": __version__,
        "recipe": question.name,
        "language": question.recipe.language,
        "model": _model(question),
        "machine": _machine(question),
        "layout": _layout(question, chosen.layout),
        "from": chosen.origin,
        "phases": phases,
        "exact": exact,
        "search": None if chosen.found is None else _found(question, chosen.found),
        "choices": [asdict(choice) for choice in _chosen(question, chosen.layout).choices()],
        **told,
        "calibration": None if question.calibration is None else question.calibration.as_dict(),
        "assumptions": _assumptions(question, chosen),
    }


def _model(question: Question) -> Table:
    shape, base = question.shape, base_shape(question.recipe)
    return {
        "name": shape.name,
        "parameters": shape.parameters,
        "vocabulary": shape.vocabulary,
        "base_vocabulary": base.vocabulary,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "tied": shape.tied,
    }


def _machine(question: Question) -> Table:
    kind = question.machine
    return {
        "instance": kind.name,
        "device": kind.device,
        "nodes": question.nodes,
        "devices": question.devices,
        "memory_bytes": kind.memory_bytes,
        "network_bytes_per_s": kind.network or None,
        "flops_bf16": kind.flops_bf16 or None,
        "price_checked": kind.checked or None,
    }


def _layout(question: Question, layout: Layout) -> Table:
    work = question.work
    degrees = asdict(layout)
    degrees["activation_checkpointing"] = degrees.pop("recompute")
    return {
        "name": layout.name(),
        **degrees,
        "state": work.state,
        "kernels": work.kernels,
        "precision": work.compute,
        "batch_size": question.recipe.pretrain.batch_size,
        "sequence_length": work.sequence_length,
    }


def _phase(question: Question, layout: Layout, phase: Phase) -> Table:
    work = work_of(question.recipe, question.machine, phase.trains)
    settings = question.recipe.pretrain
    tokens = phase.steps * settings.batch_size * settings.sequence_length
    rate = _rate(question, layout, work)
    told: Table = dict.fromkeys(
        ("tokens_per_s_per_device", "tokens_per_s", "step_s", "mfu", "hours", "bound", "step_parts_s")
    )
    if rate is not None:
        factor = 1.0 if question.calibration is None else question.calibration.factor
        told = {
            "tokens_per_s_per_device": rate.tokens_per_s_per_device * factor,
            "tokens_per_s": rate.tokens_per_s * factor,
            "step_s": rate.step_s / factor,
            "without_overlap_s": rate.without_overlap_s / factor,
            "mfu": rate.mfu * factor,
            "hours": tokens / (rate.tokens_per_s * factor) / 3600,
            "bound": rate.bound,
            "step_parts_s": {name: seconds / factor for name, seconds in rate.parts_s.items()},
        }
    per_token = question.shape.flops_per_token(settings.sequence_length, phase.trains)
    return {
        "trains": phase.trains,
        "steps": phase.steps,
        "tokens": tokens,
        "flops": per_token * tokens,
        "memory": _memory(question, layout, work),
        **told,
    }


def _rate(question: Question, layout: Layout, work: Work) -> Speed | None:
    if not (question.machine.flops_bf16 and question.machine.hbm):
        return None
    return speed(question.shape, layout, work, question.machine, question.nodes)


def _memory(question: Question, layout: Layout, work: Work) -> Table:
    found: Memory = peak_memory(question.shape, layout, work)
    outside = reserved(found, question.machine)
    total = found.allocated + sum(outside.values())
    return {
        "parts": found.parts,
        "outside": outside,
        "allocated_bytes": found.allocated,
        "total_bytes": total,
        "limit_bytes": limit_bytes(question.machine),
        "device_bytes": question.machine.memory_bytes,
        "moment": found.moment,
        "stage": found.stage,
        "verdict": verdict(total, question.machine),
    }


def _budget(question: Question, phases: Sequence[Table]) -> Budget:
    settings = question.recipe.pretrain
    shape = question.shape
    learning = {"all": shape.parameters, "embeddings": shape.embeddings}
    stretches = [
        Stretch(
            steps=phase["steps"],
            tokens=phase["tokens"],
            flops=phase["flops"],
            tokens_per_s=phase["tokens_per_s"],
        )
        for phase in phases
    ]
    size = checkpoint_bytes(
        shape.parameters, max(learning[p.trains] for p in settings.phases), settings.state
    )
    return budget(
        stretches,
        question.machine,
        question.nodes,
        checkpoint_bytes=size,
        parameters=shape.parameters,
        checkpoint_every=settings.checkpoint_every,
        keep=settings.keep_checkpoints,
        asynchronous=True,
        epoch_tokens=question.epoch_tokens,
        **_range(question.calibration),
    )


def _range(calibration: Calibration | None) -> Table:
    """How far the time may be off: by what published runs reached, or by what was measured."""
    if calibration is None:
        return {}
    factor = calibration.factor
    return {"mfu_range": None, "spread": (factor / calibration.high, factor / calibration.low)}


def _found(question: Question, found: Found) -> Table:
    return {
        "considered": found.considered,
        "fitting": found.fitting,
        "seconds": round(found.seconds, 3),
        "best": [_candidate(question, candidate) for candidate in found.best],
        "frontier": [_candidate(question, candidate) for candidate in found.frontier],
    }


def _candidate(question: Question, candidate: Candidate) -> Table:
    layout = candidate.layout
    hours = sum(
        phase["hours"]
        for phase in (_phase(question, layout, phase) for phase in question.recipe.pretrain.phases)
    )
    price = question.machine.on_demand
    factor = 1.0 if question.calibration is None else question.calibration.factor
    degrees = asdict(layout)
    degrees["activation_checkpointing"] = degrees.pop("recompute")
    return {
        "name": layout.name(),
        **degrees,
        "total_bytes": candidate.total_bytes,
        "verdict": candidate.verdict,
        "tokens_per_s_per_device": candidate.speed.tokens_per_s_per_device * factor,
        "hours": hours,
        "cost": None if price is None else price * question.nodes * hours,
    }


def _chosen(question: Question, layout: Layout) -> Chosen:
    return Chosen(
        shape=question.shape,
        layout=layout,
        work=question.work,
        machine=question.machine,
        nodes=question.nodes,
    )


def _assumptions(question: Question, chosen: Answer) -> list[str]:
    layout, recipe = chosen.layout, question.recipe
    told = []
    if len(recipe.tokenizer.vocab_sizes) > 1 and recipe.tokenizer.strategy != "base":
        told.append(
            f"The vocabulary is the largest of {list(recipe.tokenizer.vocab_sizes)} (assumption: the most memory)."
        )
    if layout.batch_size != recipe.pretrain.batch_size:
        told.append(
            f"{recipe.pretrain.batch_size} sequences do not divide evenly over {layout.data} groups of devices; "
            f"the slowest takes {layout.micro_batch_size * layout.micro_batches}."
        )
    if question.machine.device != CPU:
        told += [OUTSIDE_ASSUMPTION, FRAGMENTATION_ASSUMPTION]
    return [*told, *ASSUMPTIONS]
