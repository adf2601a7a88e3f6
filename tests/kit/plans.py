"""Shapes of known models, and a plan to show: azerbaijani-1b on two p4d.24xlarge."""

from dataclasses import replace
from functools import cache
from typing import Any

from anadil.estimate.instances import machine
from anadil.estimate.model_shape import KNOWN, Shape, shape_from
from anadil.estimate.text_use import PlannedText, TextSize, plan_text
from anadil.plan.plan import PlanRequest, build_plan, choose_layout
from anadil.plan.schema import Plan
from anadil.recipe.load import load_recipe
from tests.kit.one_text import ONE_TEXT


def known(name: str) -> Shape:
    """Of a model that the package knows by its name on the hub."""
    return shape_from(KNOWN[name], name)


ONE = known("meta-llama/Llama-3.2-1B")
EIGHT = known("meta-llama/Llama-3.1-8B")
SEVENTY = known("meta-llama/Llama-3.1-70B")


def text_of_tokens(tokens: int) -> PlannedText:
    """Text of the recipe `azerbaijani-1b` that has so many tokens."""
    return plan_text(load_recipe("azerbaijani-1b", [ONE_TEXT]), {"": TextSize(basis="given", tokens=tokens)})[
        1
    ]


TEXT = text_of_tokens(2_500_000_000)


@cache
def plan() -> Plan:
    """The same at each call; the search says that it took 0.4 s."""
    request = PlanRequest(
        name="azerbaijani-1b",
        recipe=load_recipe("azerbaijani-1b"),
        machine=machine("p4d.24xlarge"),
        nodes=2,
        text=TEXT,
    )
    made = build_plan(request, choose_layout(request))
    assert made.search is not None
    return replace(made, search=replace(made.search, seconds=0.4))


def unknown_speed() -> Plan:
    """The same plan where how fast the device is nobody knows."""
    request = PlanRequest(
        name="azerbaijani-1b",
        recipe=load_recipe("azerbaijani-1b"),
        machine=replace(machine("p4d.24xlarge"), flops_bf16=0.0, hbm=0.0, on_demand=None, checked=""),
        nodes=2,
    )
    return build_plan(request, choose_layout(request))


def with_memory(number: int, **changed: Any) -> Plan:
    """The plan with other memory in one of its phases."""
    phases = [*plan().phases]
    phases[number] = replace(phases[number], memory=replace(phases[number].memory, **changed))
    return replace(plan(), phases=tuple(phases))


def with_text(text: str) -> Plan:
    """The plan with a text in every place that a recipe or a file of prices fills."""
    made = plan()
    why = tuple(replace(each, why=text) for each in made.choices)
    machine = replace(made.machine, instance=text, device=text, price_checked=text)
    return replace(made, recipe=text, model=replace(made.model, name=text), machine=machine, choices=why)
