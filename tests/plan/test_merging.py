"""Needs of a merge in a plan."""

import pytest

from anadil.merge import auto
from anadil.plan import stage_memory
from anadil.plan.instances import machine
from anadil.plan.model_shape import trained_shape
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.plan.stage_memory import merge_need, stage_devices
from anadil.plan.view import plan_lines
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe

GPUS = machine("p5.48xlarge")
VECTOR = "{model: meta-llama/Llama-3.2-1B-Instruct, minus: meta-llama/Llama-3.2-1B, weight: %s}"


def recipe_of(merge: str) -> Recipe:
    return load_recipe("azerbaijani-1b", [f"merge={merge}"])


@pytest.mark.parametrize(
    ("merge", "points", "devices"),
    [
        ("{base_share: 0.25}", 0, (1, 0)),
        ("{base_share: auto}", 7, (1, 1)),
        (f"{{add: [{VECTOR % 'auto'}]}}", 5, (1, 1)),
        (f"{{base_share: auto, add: [{VECTOR % 'auto'}]}}", 11, (1, 1)),
    ],
)
def test_a_merge_takes_a_gpu_only_to_score_what_it_chooses_from(
    merge: str, points: int, devices: tuple[int, int]
) -> None:
    recipe = recipe_of(merge)

    need = merge_need(trained_shape(recipe), recipe, GPUS)

    assert need
    assert (need.points, need.memory is not None) == (points, points > 0)
    assert stage_devices("merge", recipe, GPUS, 1) == devices


def test_each_model_is_read_once() -> None:
    plain = recipe_of("{base_share: 0.25}")
    added = recipe_of(f"{{add: [{VECTOR % 1.0}]}}")

    needs = [merge_need(trained_shape(each), each, GPUS) for each in (plain, added)]

    one, two = (need for need in needs if need)
    # The base is what is subtracted, and is read once.
    assert two.read_bytes - one.read_bytes == one.read_bytes - one.disk_bytes


def test_a_plan_without_a_merge_says_nothing_of_it() -> None:
    plans = []
    for settings in ([], ["merge={base_share: 0.25}"]):
        request = request_for("r", load_recipe("azerbaijani-1b", settings), GPUS, 1, None)
        plans.append(build_plan(request, choose_layout(request)))

    shown = ["\n".join(plan_lines(plan)) for plan in plans]
    assert ["weights to read" in each for each in shown] == [False, True]
    assert "merges to score" not in shown[1]


def test_the_plan_counts_the_blocks_and_points_that_the_stage_has() -> None:
    from anadil.merge import weights

    assert stage_memory.BLOCK_BYTES == weights.BLOCK_BYTES
    assert len(auto.STEPS) + auto.MORE_SHARES == stage_memory.SHARES
    # A weight of 0 is the point without the difference, which is measured already.
    assert len(auto.STEPS) - 1 == stage_memory.WEIGHTS
