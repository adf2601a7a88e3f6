"""Needs and text of a run whose base writes replay, before it begins."""

from pathlib import Path

import pytest

from anadil.core.errors import PreflightError
from anadil.core.stages import STAGES
from anadil.estimate.instances import machine
from anadil.estimate.stage_memory import NeedRequest
from anadil.estimate.text_use import TextSize
from anadil.plan.needs import checked_memory, stage_devices
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.plan.view import plan_lines
from anadil.preflight.inputs import inspect_files
from anadil.preflight.memory import check_fits
from anadil.preflight.text_size import text_of
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.replay.need import ReplayNeed
from anadil.replay.need import need as replay_need

LARGE = "meta-llama/Llama-3.1-70B"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "web.jsonl").write_bytes(b"\n" * 3_000_000)
    text = (
        f"language: az\nsources: {{web: {{inputs: ['{tmp_path}/web.jsonl']}}, self: {{written_by: base, tokens: 5M}}}}\n"
        "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, self: .1}}]}"
    )
    return parse_recipe(text, "r.yaml", ["base.model=meta-llama/Llama-3.2-1B"])


def test_the_tokens_that_a_base_is_to_write_are_its_text(recipe: Recipe) -> None:
    sizes = text_of(recipe)

    assert sizes["self"] == TextSize(basis="written", tokens=5_000_000, text_bytes=15_000_000)
    assert sizes["web"].basis == "files"
    source = recipe.sources["self"].model_copy(update={"max_tokens": 2_000_000})
    less = recipe.model_copy(update={"sources": {**recipe.sources, "self": source}})
    assert text_of(less)["self"].tokens == 2_000_000


def test_a_source_of_the_base_has_no_files_to_look_into(recipe: Recipe) -> None:
    result = inspect_files(STAGES["clean"], recipe.of_source("self"))

    assert (result.name, result.detail) == ("sources.self.written_by", "the base writes 5,000,000 tokens")


def test_a_plan_counts_what_the_base_writes_with_its_time_and_memory(recipe: Recipe) -> None:
    request = request_for("r", recipe, machine("p5.48xlarge"), 1, text_of(recipe))

    plan = build_plan(request, choose_layout(request))

    shown = [" ".join(line.split()) for line in plan_lines(plan)]
    assert "tokens 5 M" in shown
    assert any(line.startswith("self 5 M the recipe") for line in shown)
    need = next(each.need for each in plan.needs if each.stage == "replay")
    assert isinstance(need, ReplayNeed)
    assert need.memory.verdict == "fits"
    # 5 M tokens, a thousand and more at a time, in steps of some ten milliseconds.
    assert need.rows > 256
    assert need.hours is not None
    assert 5e6 / need.rows * 0.008 / 3_600 < need.hours < 0.2
    assert "replay" in plan.as_json()
    without = recipe.model_copy(update={"sources": {}})
    assert replay_need(NeedRequest(recipe=without, machine=machine("p5.48xlarge"))) is None


def test_the_doctor_says_what_writing_needs_and_refuses_what_no_machine_holds(recipe: Recipe) -> None:
    cluster = recipe.cluster.model_copy(update={"instance": "p5.48xlarge"})
    assert check_fits(recipe.model_copy(update={"cluster": cluster}), here=False).startswith("replay needs ")
    large = recipe.model_copy(update={"base": recipe.base.model_copy(update={"model": LARGE})})

    with pytest.raises(
        PreflightError, match=r"replay does not fit: .* give real text in place of written_by"
    ):
        [*checked_memory(NeedRequest(recipe=large, machine=machine("g5.xlarge")), ("replay",))]


def test_the_step_takes_the_fewest_gpus_that_hold_the_base(recipe: Recipe) -> None:
    kind = machine("p5.48xlarge")
    base = recipe.base.model_copy(update={"model": LARGE})

    assert stage_devices("replay", recipe, kind, 1) == (1, 1)
    assert stage_devices("replay", recipe.model_copy(update={"base": base}), kind, 1)[1] > 1
