"""The lines of a recipe that a layout stands for, to be pasted."""

from collections.abc import Mapping
from typing import Any

import yaml

from anadil.plan.instances import LOCAL, Machine
from anadil.plan.layout import Layout
from anadil.plan.reliability import CheckpointPlan


def recipe_settings(
    layout: Layout, machine: Machine, nodes: int, checkpoint_every: int | None = None
) -> dict[str, object]:
    """Recipe keys and values of a layout on some machines.

    Args:
        layout: How devices share the run.
        machine: Of each node.
        nodes: Machines.
        checkpoint_every: Optimizer steps between checkpoints; None leaves the recipe's own.
    """
    settings: dict[str, object] = {
        "pretrain.micro_batch_size": layout.micro_batch_size,
        "pretrain.activation_checkpointing": layout.recompute,
        **{f"pretrain.parallelism.{name}": degree for name, degree in layout.degrees.items()},
    }
    if checkpoint_every is not None:
        settings["pretrain.checkpoint_every"] = checkpoint_every
    if machine.name != LOCAL:
        settings |= {"cluster.instance": machine.name, "cluster.nodes": nodes}
    return settings


def least_waste(checkpoints: CheckpointPlan, steps: int) -> int | None:
    """Optimizer steps between checkpoints by the rule that wastes least; None where a step's time is not known.

    Args:
        checkpoints: With MTBF / 10 and Young-Daly side by side.
        steps: Of the whole run; no distance is longer.
    """
    known = [
        (each.waste, each.steps) for each in checkpoints.intervals if each.steps and each.rule != "recipe"
    ]
    return min(min(known)[1], steps) if known else None


def recipe_lines(settings: Mapping[str, object]) -> list[str]:
    """Settings by dotted key as the lines of a recipe."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
    return yaml.safe_dump(tables, sort_keys=False).splitlines()
