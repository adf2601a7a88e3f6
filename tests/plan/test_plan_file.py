"""The plan that is kept with a run."""

import json
from pathlib import Path

from anadil.plan.plan import plan_as_file
from anadil.plan.text_use import TextSize
from anadil.recipe.load import load_recipe
from tests.kit.one_text import ONE_TEXT
from tests.plan.test_families import MIXTURES, SIZES, based_on


def test_a_run_on_this_machine_keeps_its_plan() -> None:
    files = plan_as_file(load_recipe("smoke"), "smoke", here=True)

    assert json.loads(files["plan.json"])["machine"]["instance"] == "local"


def test_where_no_machine_is_named_no_plan_is_kept() -> None:
    assert plan_as_file(load_recipe("smoke", ["cluster.instance=null"]), "smoke", here=False) == {}


def test_a_model_that_is_not_planned_keeps_no_plan_and_stops_no_run(tmp_path: Path) -> None:
    recipe = based_on(tmp_path, SIZES | MIXTURES["mixtral"])

    assert plan_as_file(recipe, "mine", here=True) == {}


def test_the_plan_that_is_kept_counts_the_steps_that_the_text_leaves() -> None:
    recipe = load_recipe("own", [ONE_TEXT])

    whole, short = (
        json.loads(plan_as_file(recipe, "own", here=True, text=text)["plan.json"])["time"]
        for text in (None, {"": TextSize(basis="given", tokens=819_200)})
    )

    # 4 passes over 819,200 tokens in batches of 16 x 512.
    assert (whole["steps"], short["steps"]) == (20_000, 400)
    assert short["epochs"] == 4
