import json
from dataclasses import replace
from typing import Any

import pytest

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.plan.calibration import Measurement, Prediction, calibrate
from anadil.plan.instances import machine, this_machine
from anadil.plan.layout import Layout
from anadil.plan.plan import Answer, Question, answer, plan_of
from anadil.recipe.load import load_recipe

SECTIONS = (
    "version",
    "recipe",
    "language",
    "model",
    "machine",
    "layout",
    "from",
    "phases",
    "exact",
    "search",
    "choices",
    "time",
    "cost",
    "reliability",
    "checkpoints",
    "storage",
    "calibration",
    "assumptions",
)
COPIES = "pretrain.parallelism.shard=1"
AZERBAIJANI = Question(
    name="azerbaijani-1b",
    recipe=load_recipe("azerbaijani-1b", [COPIES]),  # its batch does not fit beside a copy
    machine=machine("p4d.24xlarge"),
    nodes=2,
    epoch_tokens=2_500_000_000,
)
JAPANESE = Question(
    name="japanese-70b",
    recipe=load_recipe("japanese-70b", ["pretrain.activation_checkpointing=none"]),  # more than fits
    machine=machine("p5.48xlarge"),
    nodes=32,
)
Plan = dict[str, Any]


@pytest.fixture(scope="module")
def azerbaijani() -> Plan:
    return plan_of(AZERBAIJANI, answer(AZERBAIJANI))


@pytest.fixture(scope="module")
def japanese() -> Plan:
    return plan_of(JAPANESE, answer(JAPANESE))


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> Question:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Question(name="smoke", recipe=load_recipe("smoke"), machine=this_machine(), nodes=1)


@pytest.fixture(params=["azerbaijani", "japanese"])
def told(request: pytest.FixtureRequest) -> tuple[Question, Plan]:
    question = {"azerbaijani": AZERBAIJANI, "japanese": JAPANESE}[request.param]
    return question, request.getfixturevalue(request.param)


def test_a_plan_is_json_with_every_section(told: tuple[Question, Plan]) -> None:
    question, plan = told

    again = json.loads(json.dumps(plan, allow_nan=False))

    assert tuple(plan) == SECTIONS
    assert again["recipe"] == question.name
    assert again["version"] == __version__
    assert again["choices"][0]["setting"] == "parallelism"
    assert again["assumptions"]
    assert plan["exact"] is plan["calibration"] is None


def test_what_is_planned_is_said(azerbaijani: Plan, japanese: Plan) -> None:
    assert azerbaijani["model"] == {
        "name": "meta-llama/Llama-3.2-1B",
        "parameters": 1_177_946_112,
        "vocabulary": 100_000,
        "base_vocabulary": 128_256,
        "layers": 16,
        "hidden": 2_048,
        "tied": True,
    }
    assert (azerbaijani["machine"]["devices"], japanese["machine"]["devices"]) == (16, 256)
    assert (azerbaijani["language"], japanese["language"]) == ("az", "ja")
    assert japanese["layout"]["batch_size"] == 512
    assert japanese["layout"]["sequence_length"] == 8_192


def test_where_the_recipe_does_not_fit_the_fastest_that_does_is_planned(
    told: tuple[Question, Plan],
) -> None:
    _, plan = told

    best = plan["search"]["best"]

    assert plan["from"] == "search"
    assert plan["layout"]["name"] == best[0]["name"]
    assert plan["layout"]["micro_batch_size"] == best[0]["micro_batch_size"]
    assert [phase["memory"]["verdict"] for phase in plan["phases"]] == ["fits"] * len(plan["phases"])
    rates = [each["tokens_per_s_per_device"] for each in best]
    assert rates == sorted(rates, reverse=True)


def test_where_the_recipe_fits_it_is_planned_unless_the_fastest_is_asked_for() -> None:
    question = replace(AZERBAIJANI, machine=machine("p5.48xlarge"), nodes=1)

    own, best = answer(question), answer(question, best=True)

    assert (own.origin, own.layout.name()) == ("recipe", "DDP 8")
    assert best.origin == "search"
    assert own.found is not None
    assert best.layout == own.found.best[0].layout != own.layout


def test_where_the_recipe_has_no_layout_on_the_machines_the_fastest_is_planned() -> None:
    recipe = load_recipe("azerbaijani-1b")
    question = replace(AZERBAIJANI, recipe=recipe, machine=machine("p5.48xlarge"), nodes=1)

    chosen = answer(question)

    assert recipe.pretrain.parallelism.shard == 16
    assert question.devices == 8
    assert chosen.found is not None
    assert (chosen.origin, chosen.layout) == ("search", chosen.found.best[0].layout)


def test_without_a_speed_there_is_no_fastest_so_the_degrees_have_to_divide() -> None:
    unknown = replace(machine("p5.48xlarge"), flops_bf16=0.0, hbm=0.0)
    question = replace(AZERBAIJANI, recipe=load_recipe("azerbaijani-1b"), machine=unknown, nodes=1)

    with pytest.raises(RecipeError, match="shard: 16 does not divide the 8 device"):
        answer(question)


def test_a_layout_that_does_not_fit_has_the_verdict_no() -> None:
    chosen = Answer(layout=Layout(data=16, micro_batch_size=28), origin="recipe", found=None)

    plan = plan_of(AZERBAIJANI, chosen)

    assert [phase["memory"]["verdict"] for phase in plan["phases"]] == ["no", "no"]
    assert plan["search"] is None


def test_the_parts_of_memory_add_up(told: tuple[Question, Plan]) -> None:
    _, plan = told

    for phase in plan["phases"]:
        memory = phase["memory"]
        assert sum(memory["parts"].values()) == memory["allocated_bytes"]
        assert memory["allocated_bytes"] + sum(memory["outside"].values()) == memory["total_bytes"]
        assert memory["total_bytes"] <= memory["limit_bytes"] < memory["device_bytes"]
    worst = max(phase["memory"]["total_bytes"] for phase in plan["phases"])
    assert worst == plan["search"]["best"][0]["total_bytes"]


def test_the_parts_of_a_step_add_up_and_give_the_rate(told: tuple[Question, Plan]) -> None:
    question, plan = told

    for phase in plan["phases"]:
        assert sum(phase["step_parts_s"].values()) == pytest.approx(phase["step_s"])
        assert phase["step_s"] <= phase["without_overlap_s"]
        tokens = plan["layout"]["batch_size"] * plan["layout"]["sequence_length"]
        assert phase["tokens_per_s"] == pytest.approx(tokens / phase["step_s"])
        assert phase["tokens_per_s_per_device"] * question.devices == pytest.approx(phase["tokens_per_s"])
        seconds = phase["hours"] * 3600
        used = phase["flops"] / seconds / question.devices / question.machine.flops_bf16
        assert phase["mfu"] == pytest.approx(used)


def test_tokens_are_steps_times_batch_times_length(told: tuple[Question, Plan]) -> None:
    question, plan = told
    settings = question.recipe.pretrain

    for phase in plan["phases"]:
        assert phase["tokens"] == phase["steps"] * settings.batch_size * settings.sequence_length
    for name in ("steps", "tokens", "flops", "hours"):
        assert plan["time"][name] == pytest.approx(sum(phase[name] for phase in plan["phases"]))


def test_money_is_hours_times_the_price_of_all_machines(told: tuple[Question, Plan]) -> None:
    question, plan = told
    price, time, cost = question.machine.on_demand, plan["time"], plan["cost"]

    assert price is not None
    assert cost["per_hour"]["on_demand"] == pytest.approx(price * question.nodes)
    for name in ("", "_low", "_high"):
        assert cost[f"on_demand{name}"] == pytest.approx(cost["per_hour"]["on_demand"] * time[f"hours{name}"])
    assert time["gpu_hours"] == pytest.approx(time["hours"] * question.devices)
    assert plan["search"]["best"][0]["cost"] == pytest.approx(cost["on_demand"])
    assert cost["spot"] is None


def test_epochs_follow_from_the_tokens_of_the_corpus(azerbaijani: Plan, japanese: Plan) -> None:
    assert azerbaijani["time"]["epochs"] == pytest.approx(azerbaijani["time"]["tokens"] / 2.5e9)
    assert japanese["time"]["epochs"] is None


def test_published_runs_lie_in_the_range_that_is_shown(japanese: Plan) -> None:
    # 16 days and 6 hours for 314B tokens on 256 H100, as published.
    assert japanese["time"]["hours_low"] < 390 < japanese["time"]["hours_high"]


def test_a_calibration_scales_the_time_and_narrows_its_range(azerbaijani: Plan) -> None:
    chosen = answer(AZERBAIJANI)
    run = Measurement(
        status="ok",
        device="A100 40 GB",
        shape=AZERBAIJANI.shape,
        layout=chosen.layout,
        work=AZERBAIJANI.work,
        versions={},
        tokens_per_s_per_device=5_000.0,
    )
    found = calibrate(
        [run, replace(run, tokens_per_s_per_device=5_100.0)],
        lambda _: Prediction(tokens_per_s_per_device=10_000.0, allocated_bytes=1),
        device="A100 40 GB",
        shape=AZERBAIJANI.shape,
    )
    assert found is not None

    plan = plan_of(replace(AZERBAIJANI, calibration=found), chosen)

    time, before = plan["time"], azerbaijani["time"]
    assert plan["calibration"]["measured"] == 2
    assert time["hours"] == pytest.approx(before["hours"] / found.factor)
    assert time["hours_low"] == pytest.approx(before["hours"] / 0.51)
    assert time["hours_high"] == pytest.approx(before["hours"] / 0.50)
    assert time["hours_high"] / time["hours_low"] < before["hours_high"] / before["hours_low"]
    for phase in plan["phases"]:
        assert sum(phase["step_parts_s"].values()) == pytest.approx(phase["step_s"])
    assert plan["search"]["best"][0]["hours"] == pytest.approx(time["hours"])


def test_a_device_of_unknown_speed_has_memory_and_nulls() -> None:
    unknown = replace(AZERBAIJANI.machine, flops_bf16=0.0, hbm=0.0)
    question = replace(AZERBAIJANI, machine=unknown)

    plan = plan_of(question, answer(question))

    json.dumps(plan, allow_nan=False)
    assert (plan["from"], plan["search"]) == ("recipe", None)
    assert plan["phases"][0]["tokens_per_s"] is plan["time"]["hours"] is plan["cost"]["on_demand"] is None
    assert plan["phases"][0]["memory"]["total_bytes"] > 0


def test_a_laptop_has_a_plan_without_a_price(laptop: Question) -> None:
    plan = plan_of(laptop, answer(laptop))

    assert tuple(plan) == SECTIONS
    assert (plan["from"], plan["layout"]["name"]) == ("recipe", "one device")
    assert plan["cost"]["on_demand"] is None
    assert not any("CUDA" in sentence for sentence in plan["assumptions"])


def test_assumptions_say_what_was_assumed(azerbaijani: Plan, japanese: Plan) -> None:
    assert any("largest of [50000, 75000, 100000]" in each for each in azerbaijani["assumptions"])
    assert not any("largest of" in each for each in japanese["assumptions"])
    odd = replace(
        AZERBAIJANI,
        recipe=load_recipe("azerbaijani-1b", [COPIES, "pretrain.batch_size=100"]),
    )
    uneven = plan_of(odd, Answer(layout=Layout(data=16, micro_batch_size=7), origin="recipe", found=None))
    assert any("100 sequences do not divide evenly" in each for each in uneven["assumptions"])


def test_what_fake_tensors_have_shown_is_passed_on(laptop: Question) -> None:
    shown = {"allocated_bytes": 1, "difference_percent": 0.0}

    assert plan_of(laptop, answer(laptop), shown)["exact"] == shown
