"""Refuse a training run that cannot fit, before anything is rented or computed."""

from collections.abc import Mapping, Sequence

from anadil.config import Recipe
from anadil.errors import PreflightError
from anadil.plan.layout import Layout, Work
from anadil.plan.machine import Machine, machine, machines, this_machine
from anadil.plan.search import Remedy, fit, nearest
from anadil.plan.settings import hardest, layout_of, work_of
from anadil.plan.shape import Shape, trained_shape
from anadil.units import human_bytes

MOST_REMEDIES = 4


def check_fits(recipe: Recipe, *, here: bool) -> str:
    """One line about the memory that `pretrain` needs.

    Args:
        recipe: What is to be trained.
        here: On this machine, not on the machines of `cluster`.

    Raises:
        PreflightError: It does not fit; with the nearest settings that do.
        RecipeError: The layout cannot be, or the machine type is not known.
        DataError: The base model's shape cannot be read.
    """
    shape = trained_shape(recipe)
    kind, nodes = this_machine(), 1
    if not here and recipe.cluster.instance is not None:
        kind, nodes = machine(recipe.cluster.instance), recipe.cluster.nodes
    layout = layout_of(recipe, kind, nodes)
    work = work_of(recipe, kind, hardest(recipe))
    total, verdict = fit(shape, layout, work, kind)
    line = f"pretrain needs {human_bytes(total)} of {human_bytes(kind.memory_bytes)} per device"
    if verdict == "no":
        raise PreflightError(refusal(shape, layout, work, kind, nodes, () if here else machines()))
    return f"{line} ({verdict})"


def refusal(
    shape: Shape,
    layout: Layout,
    work: Work,
    kind: Machine,
    nodes: int,
    others: Sequence[Machine] = (),
    changed: Mapping[str, int | str] | None = None,
) -> str:
    """What does not fit, and the nearest settings that do.

    Args:
        shape: The model.
        layout: How devices share it.
        work: What a step computes.
        kind: Of each machine.
        nodes: Machines.
        others: Machine types that could be taken instead.
        changed: By recipe key, what has to be set for the layout; each remedy says it too.
    """
    total, _ = fit(shape, layout, work, kind)
    head = (
        f"pretrain does not fit: {shape.name} ({shape.parameters / 1e9:.2f}B parameters), "
        f"{layout.name()}, micro-batch {layout.micro_batch_size} of {work.sequence_length:,} tokens, needs "
        f"{human_bytes(total)} on a device that has {human_bytes(kind.memory_bytes)} ({kind.name}, {kind.device})"
    )
    remedies = nearest(shape, layout, work, kind, nodes, others, changed)
    if not remedies:
        return f"{head}; no setting makes it fit: take a smaller base.model or a larger machine"
    lines = [
        f"  {_settings(remedy)}  ({human_bytes(remedy.total_bytes)})" for remedy in remedies[:MOST_REMEDIES]
    ]
    return "\n".join([f"{head}; what fits instead:", *lines])


def _settings(remedy: Remedy) -> str:
    return " ".join(f"--set {key}={value}" for key, value in remedy.settings.items())
