import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.estimate.instances import Machine, machine, this_machine
from anadil.estimate.layout import Kernels, Layout, Work
from anadil.estimate.speed import GPU_STEP_SHARE, Calibration, speed
from anadil.estimate.text_use import TextSize
from anadil.plan import schema
from anadil.plan.plan import (
    PlanRequest,
    PlanResult,
    build_plan,
    choose_layout,
    plan_as_file,
    plan_of,
    request_for,
)
from anadil.plan.schema import LayoutOption
from anadil.plan.view import answer_sentence, calibration_sentence, cost_lines, plan_lines
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.recipe.sections import Recipe
from tests.kit import plans
from tests.kit.one_text import ONE_TEXT
from tests.kit.plans import TEXT
from tests.plan.test_families import MIXTURES, SIZES, based_on

SECTIONS = (
    "expected version recipe language model machine layout from text text_fault replay encode distill merge phases after search choices time cost reliability "
    "checkpoints storage calibration assumptions"
)
KEYS = {
    "expected": "verdict hours hours_low hours_high cost cost_low cost_high",
    "model": "name parameters vocabulary base_vocabulary layers hidden tied active_parameters",
    "machine": ("instance device nodes devices memory_bytes network_bytes_per_s flops_bf16 price_checked"),
    "layout": (
        "name data shard tensor context pipeline micro_batch_size micro_batches prefetch reshard "
        "activation_checkpointing state kernels precision batch_size sequence_length"
    ),
    "text": (
        "source basis tokens words shares steps recipe_steps epochs asked_epochs max_epochs exhausted_at heirs sentence remedy"
    ),
    "phases": (
        "trains steps tokens flops memory tokens_per_s_per_device tokens_per_s step_s without_overlap_s mfu hours "
        "bound step_parts_s"
    ),
    "phases.memory": (
        "parts outside allocated_bytes total_bytes limit_bytes device_bytes moment stage verdict"
    ),
    "search": "considered fitting seconds best frontier",
    "search.best": (
        "name data shard tensor context pipeline micro_batch_size micro_batches prefetch reshard "
        "activation_checkpointing total_bytes verdict tokens_per_s_per_device hours cost"
    ),
    "choices": "setting value why",
    "time": (
        "tokens steps flops hours hours_low hours_high gpu_hours epoch_tokens hours_per_epoch epochs hours_after"
    ),
    "cost": (
        "on_demand on_demand_low on_demand_high spot spot_low spot_high training_plan training_plan_low "
        "training_plan_high per_hour currency"
    ),
    "cost.per_hour": "on_demand spot training_plan",
    "reliability": (
        "mtbf_s expected_failures restart_s lost_s_per_failure effective_training_time_ratio wall_hours"
    ),
    "checkpoints": (
        "bytes bytes_per_parameter stall_s intervals bandwidth_bytes_per_s synchronous_bandwidth_bytes_per_s "
        "generations storage_bytes"
    ),
    "checkpoints.intervals": "rule interval_s steps waste",
    "storage": "data_bytes checkpoints_bytes total_bytes preload_s",
}
"""Keys of each section of the JSON, of which programs outside read any."""
COPIES = "pretrain.parallelism.shard=1"
AZERBAIJANI = PlanRequest(
    name="azerbaijani-1b",
    recipe=load_recipe("azerbaijani-1b", [COPIES]),  # its batch does not fit beside a copy
    machine=machine("p4d.24xlarge"),
    nodes=2,
    text=TEXT,
)
JAPANESE = PlanRequest(
    name="japanese-70b",
    recipe=load_recipe("japanese-70b", ["pretrain.activation_checkpointing=none"]),  # more than fits
    machine=machine("p5.48xlarge"),
    nodes=32,
)
Plan = dict[str, Any]
RECIPE = """\
base: {model: tiny}
tokenizer: {strategies: [base, extend], vocab_sizes: [100000]}
clean: {inputs: [a.jsonl]}
"""


def planned(request: PlanRequest, chosen: PlanResult) -> Plan:
    """The JSON of a plan."""
    return build_plan(request, chosen).as_json()


@pytest.fixture(scope="module")
def azerbaijani() -> Plan:
    return planned(AZERBAIJANI, choose_layout(AZERBAIJANI))


@pytest.fixture(scope="module")
def japanese() -> Plan:
    return planned(JAPANESE, choose_layout(JAPANESE))


@pytest.fixture(params=["azerbaijani", "japanese"])
def planned_run(request: pytest.FixtureRequest) -> tuple[PlanRequest, Plan]:
    of = {"azerbaijani": AZERBAIJANI, "japanese": JAPANESE}[request.param]
    return of, request.getfixturevalue(request.param)


def test_a_plan_is_json_with_every_section(planned_run: tuple[PlanRequest, Plan]) -> None:
    request, plan = planned_run

    again = json.loads(json.dumps(plan, allow_nan=False))

    assert list(plan) == SECTIONS.split()
    assert again["recipe"] == request.name
    assert again["version"] == __version__
    assert again["choices"][0]["setting"] == "parallelism"
    assert again["assumptions"]
    assert plan["calibration"] is None


@pytest.mark.parametrize("path", KEYS)
def test_the_keys_of_the_json_stay_what_they_are(path: str, azerbaijani: Plan) -> None:
    section: Any = azerbaijani
    for key in path.split("."):
        section = section[key]
        section = section[0] if isinstance(section, list) else section

    assert list(section) == KEYS[path].split()


def test_what_is_planned_is_said(azerbaijani: Plan, japanese: Plan) -> None:
    assert azerbaijani["model"] == {
        "name": "meta-llama/Llama-3.2-1B",
        "parameters": 1_178_142_720,
        "vocabulary": 100_096,
        "base_vocabulary": 128_256,
        "layers": 16,
        "hidden": 2_048,
        "tied": True,
        "active_parameters": 1_178_142_720,
    }
    assert (azerbaijani["machine"]["devices"], japanese["machine"]["devices"]) == (16, 256)
    assert (azerbaijani["language"], japanese["language"]) == ("az", "ja")
    assert japanese["layout"]["batch_size"] == 512
    assert japanese["layout"]["sequence_length"] == 8_192


def test_where_the_recipe_does_not_fit_the_fastest_that_does_is_planned(
    planned_run: tuple[PlanRequest, Plan],
) -> None:
    _, plan = planned_run

    best = plan["search"]["best"]

    assert plan["from"] == "search"
    assert plan["layout"]["name"] == best[0]["name"]
    assert plan["layout"]["micro_batch_size"] == best[0]["micro_batch_size"]
    assert [phase["memory"]["verdict"] for phase in plan["phases"]] == ["fits"] * len(plan["phases"])
    rates = [each["tokens_per_s_per_device"] for each in best]
    assert rates == sorted(rates, reverse=True)


def test_where_the_recipe_fits_it_is_planned_unless_the_fastest_is_asked_for() -> None:
    request = replace(AZERBAIJANI, machine=machine("p5.48xlarge"), nodes=1)

    own, best = choose_layout(request), choose_layout(request, best=True)

    assert (own.origin, own.layout.name()) == ("recipe", "DDP 8")
    assert best.origin == "search"
    assert own.search is not None
    assert best.layout == own.search.best[0].layout != own.layout


def test_where_the_recipe_has_no_layout_on_the_machines_the_fastest_is_planned() -> None:
    recipe = load_recipe("azerbaijani-1b")
    request = replace(AZERBAIJANI, recipe=recipe, machine=machine("p5.48xlarge"), nodes=1)

    chosen = choose_layout(request)

    assert recipe.pretrain.parallelism.shard == 16
    assert request.devices == 8
    assert chosen.search is not None
    assert (chosen.origin, chosen.layout) == ("search", chosen.search.best[0].layout)


def test_without_a_speed_there_is_no_fastest_so_the_degrees_have_to_divide() -> None:
    unknown = replace(machine("p5.48xlarge"), flops_bf16=0.0, hbm=0.0)
    request = replace(AZERBAIJANI, recipe=load_recipe("azerbaijani-1b"), machine=unknown, nodes=1)

    with pytest.raises(RecipeError, match="shard: 16 does not divide the 8 device"):
        choose_layout(request)


def test_the_parts_of_memory_add_up(planned_run: tuple[PlanRequest, Plan]) -> None:
    _, plan = planned_run

    for phase in plan["phases"]:
        memory = phase["memory"]
        assert sum(memory["parts"].values()) == memory["allocated_bytes"]
        assert memory["allocated_bytes"] + sum(memory["outside"].values()) == memory["total_bytes"]
        assert memory["total_bytes"] <= memory["limit_bytes"] < memory["device_bytes"]
    worst = max(phase["memory"]["total_bytes"] for phase in plan["phases"])
    assert worst == plan["search"]["best"][0]["total_bytes"]


def test_the_parts_of_a_step_add_up_and_give_the_rate(planned_run: tuple[PlanRequest, Plan]) -> None:
    request, plan = planned_run

    for phase in plan["phases"]:
        assert sum(phase["step_parts_s"].values()) == pytest.approx(phase["step_s"])
        assert phase["step_s"] <= phase["without_overlap_s"]
        tokens = plan["layout"]["batch_size"] * plan["layout"]["sequence_length"]
        assert phase["tokens_per_s"] == pytest.approx(tokens / phase["step_s"])
        assert phase["tokens_per_s_per_device"] * request.devices == pytest.approx(phase["tokens_per_s"])
        seconds = phase["hours"] * 3600
        used = phase["flops"] / seconds / request.devices / request.machine.flops_bf16
        assert phase["mfu"] == pytest.approx(used)


def test_tokens_are_steps_times_batch_times_length(planned_run: tuple[PlanRequest, Plan]) -> None:
    request, plan = planned_run
    settings = request.recipe.pretrain

    for phase in plan["phases"]:
        assert phase["tokens"] == phase["steps"] * settings.batch_size * settings.sequence_length
    for name in ("steps", "tokens", "flops", "hours"):
        assert plan["time"][name] == pytest.approx(sum(phase[name] for phase in plan["phases"]))


def test_money_is_hours_times_the_price_of_all_machines(planned_run: tuple[PlanRequest, Plan]) -> None:
    request, plan = planned_run
    price, time, cost = request.machine.on_demand, plan["time"], plan["cost"]

    assert price is not None
    assert cost["per_hour"]["on_demand"] == pytest.approx(price * request.nodes)
    for name in ("", "_low", "_high"):
        assert cost[f"on_demand{name}"] == pytest.approx(cost["per_hour"]["on_demand"] * time[f"hours{name}"])
    assert time["gpu_hours"] == pytest.approx(time["hours"] * request.devices)
    assert plan["search"]["best"][0]["cost"] == pytest.approx(cost["on_demand"])
    assert cost["spot"] is None


def test_a_calibration_scales_the_time_and_narrows_its_range(azerbaijani: Plan) -> None:
    chosen = choose_layout(AZERBAIJANI)
    found = Calibration(run="model", machines="16 x A100", factor=0.6, low=0.5, high=0.7)

    plan = planned(replace(AZERBAIJANI, calibration=found), chosen)

    time, before = plan["time"], azerbaijani["time"]
    best = GPU_STEP_SHARE * before["hours"]
    assert plan["calibration"]["run"] == "model"
    assert time["hours"] == pytest.approx(best / found.factor)
    assert time["hours_low"] == pytest.approx(best / found.high)
    assert time["hours_high"] == pytest.approx(best / found.low)
    assert time["hours_high"] / time["hours_low"] < before["hours_high"] / before["hours_low"]
    for phase in plan["phases"]:
        assert sum(phase["step_parts_s"].values()) == pytest.approx(phase["step_s"])
    assert plan["search"]["best"][0]["hours"] == pytest.approx(time["hours"])


@pytest.mark.parametrize(("kernels", "measured"), [("liger", 44_012), ("torch", 36_165)])
def test_the_rate_that_one_h100_made_is_planned_within_two_percent(kernels: Kernels, measured: int) -> None:
    """Llama 3.2 1B, BF16, 4 x 2,048 tokens, without `compile`: benchmarks/train/README.md."""
    alone = replace(machine("p5.48xlarge"), devices=1)
    work = Work(sequence_length=2_048, kernels=kernels)

    predicted = speed(plans.ONE, Layout(micro_batch_size=4), work, alone, 1).tokens_per_s

    assert GPU_STEP_SHARE * predicted == pytest.approx(measured, rel=0.02)


def test_a_device_of_unknown_speed_has_memory_and_nulls() -> None:
    unknown = replace(AZERBAIJANI.machine, flops_bf16=0.0, hbm=0.0)
    request = replace(AZERBAIJANI, machine=unknown)

    plan = planned(request, choose_layout(request))

    json.dumps(plan, allow_nan=False)
    assert (plan["from"], plan["search"]) == ("recipe", None)
    assert "without_overlap_s" not in plan["phases"][0]
    assert plan["phases"][0]["tokens_per_s"] is plan["time"]["hours"] is plan["cost"]["on_demand"] is None
    assert plan["phases"][0]["memory"]["total_bytes"] > 0


def test_assumptions_say_what_was_assumed(azerbaijani: Plan, japanese: Plan) -> None:
    assert any("largest of [50000, 75000, 100000]" in each for each in azerbaijani["assumptions"])
    assert not any("largest of" in each for each in japanese["assumptions"])
    auto = [
        replace(AZERBAIJANI, recipe=load_recipe("azerbaijani-1b", ["tokenizer.vocab_sizes=auto", strategies]))
        for strategies in (
            "tokenizer.strategies=[base, extend, replace]",
            "tokenizer.strategies=[base, surgery]",
        )
    ]
    told = [planned(each, choose_layout(each))["assumptions"] for each in auto]
    assert any("vocab_sizes is auto: the size is 100,000, the most" in each for each in told[0])
    assert not any("vocab_sizes" in each for each in told[1])
    odd = replace(AZERBAIJANI, recipe=load_recipe("azerbaijani-1b", [COPIES, "pretrain.batch_size=100"]))
    uneven = planned(
        odd, PlanResult(layout=Layout(data=16, micro_batch_size=7), origin="recipe", search=None)
    )
    assert any("100 sequences do not divide evenly" in each for each in uneven["assumptions"])


def test_a_trial_of_tokenizers_counts_in_time_and_money_and_not_in_steps() -> None:
    strategies = "tokenizer.strategies=[base, extend]"
    plain, tried = (
        planned(request, choose_layout(request))
        for more in ([], ["tokenizer.trial={steps: 200}"])
        for request in [
            replace(AZERBAIJANI, recipe=load_recipe("azerbaijani-1b", [COPIES, strategies, *more]))
        ]
    )

    assert [tried["time"][key] for key in ("steps", "tokens")] == [
        plain["time"][key] for key in ("steps", "tokens")
    ]
    # Two finalists, 200 of 20,000 steps each, with the base's vocabulary, which is smaller than the extended one.
    for section, key in (("time", "flops"), ("time", "hours"), ("cost", "on_demand")):
        assert 1.016 < tried[section][key] / plain[section][key] < 1.02
    assert any("count the trial of 2 tokenizers" in each for each in tried["assumptions"])
    assert not any("the trial of" in each for each in plain["assumptions"])


def test_steps_of_new_rows_count_where_a_token_may_be_new() -> None:
    phases = "pretrain.phases=[{trains: new_rows, steps: 60, lr: 0.02}, {trains: all, steps: 100, lr: 0.001}]"
    plans = [
        plan_of(load_recipe("azerbaijani-1b", [COPIES, phases, *more]), "mine", here=False)
        for more in ([], ["tokenizer.choice=extend"], ["tokenizer.choice=base"])
    ]

    assert [each.time.steps for each in plans] == [160, 160, 100]
    said = [
        [line for line in each.assumptions if "60 steps of new_rows are counted" in line] for each in plans
    ]
    assert [len(each) for each in said] == [1, 0, 0]


def test_where_no_machine_is_named_no_plan_is_kept() -> None:
    assert plan_as_file(load_recipe("smoke", ["cluster.instance=null"]), "smoke", here=False) == {}


def test_a_model_that_is_not_planned_keeps_no_plan_and_stops_no_run(tmp_path: Path) -> None:
    recipe = based_on(tmp_path, SIZES | MIXTURES["phimoe"])

    assert plan_as_file(recipe, "mine", here=True) == {}


def test_the_plan_that_is_kept_counts_the_steps_that_the_text_leaves() -> None:
    recipe = load_recipe("own", [ONE_TEXT])

    plans_kept = [
        json.loads(plan_as_file(recipe, "own", here=True, text=text)["plan.json"])
        for text in (None, {"": TextSize(basis="given", tokens=819_200)})
    ]

    whole, short = (each["time"] for each in plans_kept)
    assert plans_kept[0]["machine"]["instance"] == "local"
    # 4 passes over 819,200 tokens in batches of 16 x 512.
    assert (whole["steps"], short["steps"]) == (20_000, 400)
    assert short["epochs"] == 4


@pytest.mark.parametrize(
    ("tokens", "settings", "said"),
    [
        (600_000, [], "The text uses about 600 tokens 100 times (assumption: Zipf's law), and 100,000 are planned for."),
        (600_000, ["tokenizer.min_uses=10"], "The text uses about 6,000 tokens 10 times"),
        (600_000, ["tokenizer.vocab_sizes=[500]"], ""),
        (600_000, ["tokenizer.strategies=[base]"], ""),
        (200_000_000, [], ""),
    ],
)  # fmt: skip
def test_a_plan_says_if_the_text_is_too_small_for_its_vocabulary(
    tokens: int, settings: list[str], said: str
) -> None:
    text = {"": TextSize(basis="given", tokens=tokens)}
    request = request_for("own", parse_recipe(RECIPE, "r.yaml", settings), this_machine(), 1, text)

    plan = build_plan(request, choose_layout(request))

    sentences = [each for each in plan.assumptions if "Zipf" in each]
    assert [each[: len(said)] for each in sentences] == ([said] if said else [])


def test_the_answer_comes_first() -> None:
    shown = " ".join(plan_lines(plans.with_memory(1, verdict="tight"))[:3])

    assert shown == (
        "azerbaijani-1b. Tight: 36.8 GiB per device (safe up to 37.5 GiB of 39.4 GiB) on 2 x p4d.24xlarge "
        "(16 x A100 40 GB); about 10 h 47 min (between 6 h 29 min and 15 h 5 min) and USD 474 on demand "
        "(between USD 285 and USD 663)."
    )


def test_a_plan_that_short_runs_have_corrected_leads_with_its_prediction() -> None:
    calibration = Calibration(run="s3://b/model/1", machines="16 x A100", factor=0.6, low=0.5, high=0.7)
    plan = replace(plans.plan(), calibration=calibration)

    said = answer_sentence(plan)

    assert "; 6 h 29 min (between 6 h 29 min and 15 h 5 min) and USD 285 on demand (between USD 285" in said
    assert "about" not in said
    assert calibration_sentence(plan) == (
        "Calibrated: rates are the predicted ones times 0.6000, as the training of s3://b/model/1 reached on 16 x A100."
    )
    assert plan.expected_cost == plan.cost.on_demand.predicted
    assert "predicted cost" in cost_lines(plan)[1]
    assert "cost at best" in cost_lines(plans.plan())[1]


def test_every_line_fits_the_terminal_of_a_very_large_run() -> None:
    plan = plans.plan()
    assert plan.search is not None
    first = plan.search.best[0]
    wide = replace(first.layout, data=2_048, shard=128, tensor=8, context=2, pipeline=16)
    large = LayoutOption(
        layout=replace(wide, micro_batch_size=1_024),
        total_bytes=first.total_bytes,
        verdict="fits",
        tokens_per_s_per_device=874.0,
        hours=1_390.4,
        cost=12_687_000.0,
    )
    price = replace(plan.cost.on_demand, predicted=12_687_000.0, low=9e6, high=21e6)

    shown = plan_lines(
        replace(
            plan,
            search=replace(plan.search, best=(large, *plan.search.best)),
            cost=replace(plan.cost, on_demand=price),
            phases=(plan.phases[0], replace(plan.phases[1], tokens_per_s=14_282_400.0)),
        )
    )

    assert max(map(len, shown)) <= 100
    assert [line for line in shown if line != line.rstrip()] == []


def test_the_plans_own_layout_has_a_star_and_none_that_differs_in_one_setting() -> None:
    plan = plans.plan()
    other = replace(plan.layout, layout=replace(plan.layout.layout, recompute="full"))

    [starred], none = (
        [line for line in plan_lines(each) if line.startswith("* ")]
        for each in (plan, replace(plan, layout=other))
    )

    assert starred.startswith("* FSDP 16")
    assert "36.8 GiB" in starred
    assert none == []


def test_a_plan_that_does_not_fit_says_what_it_would_take() -> None:
    plan = plans.with_memory(1, verdict="no")
    price = replace(plan.cost.on_demand, predicted=None, low=None, high=None)

    said = answer_sentence(replace(plan, cost=replace(plan.cost, on_demand=price)))

    assert said.startswith("Does not fit: 36.8 GiB per device")
    assert said.endswith("it would take about 10 h 47 min (between 6 h 29 min and 15 h 5 min).")


def test_what_is_not_known_is_a_dash_or_left_out() -> None:
    shown = "\n".join(plan_lines(plans.unknown_speed()))

    assert "on 2 x p4d.24xlarge\n(16 x A100 40 GB); \N{EM DASH}.\n" in shown
    assert "None" not in shown
    assert "nan" not in shown
    assert not [text for text in ("Best layouts", "computed in", "Cost", "Prices:") if text in shown]


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    shown = "\n".join(plan_lines(plans.with_text("az\x1b[2J\r\nroot\x07")))

    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert shown.startswith("az [2J root. Fits")


BF16_CPU = replace(
    machine("p4d.24xlarge"), name="local", device="CPU", devices=1, flops_bf16=148e9, hbm=20e9, cpu_bf16=True
)
"""Two logical CPUs with AVX-512 BF16, FP32 peak measured: the machine of benchmarks/real."""
AVX2_CPU = replace(BF16_CPU, flops_bf16=188e9, cpu_bf16=False)
REAL = load_recipe("real")
REAL_TEXT = {
    "az": TextSize(basis="corpus", tokens=131_000, text_bytes=394_000, words=41_000),
    "en": TextSize(basis="corpus", tokens=14_000, text_bytes=42_000, words=7_100),
}


def on_cpu(cpu: Machine, recipe: Recipe = REAL) -> schema.Plan:
    request = request_for("real", recipe, cpu, 1, REAL_TEXT)
    return build_plan(request, choose_layout(request))


def test_the_time_on_a_cpu_is_that_of_the_readme_and_of_the_recorded_run() -> None:
    """Measured: 240 steps of 1.85 s, finetune 454 s, evaluate 468 s; see benchmarks/real."""
    found = re.search(
        r"after (\d+) minutes on two CPU cores", (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    )
    plan = on_cpu(BF16_CPU)

    assert found
    assert plan.expected_hours is not None
    assert plan.time.hours_after is not None
    assert 1 / 1.5 < plan.expected_hours * 60 / int(found[1]) < 1.5
    assert 1 / 1.5 < plan.time.hours_after * 3600 / (454 + 468) < 1.5
    assert plan.peak.step_s is not None
    assert 1 / 1.5 < plan.peak.step_s / 1.85 < 1.5
    assert "finetuning and scoring" in "\n".join(plan_lines(plan))


@pytest.mark.parametrize("cpu", [BF16_CPU, AVX2_CPU], ids=["BF16", "AVX2"])
def test_no_share_of_a_cpus_peak_is_more_than_all_of_it(cpu: Machine) -> None:
    plan = on_cpu(cpu)

    assert plan.peak.mfu is not None
    assert plan.time.hours_low is not None
    assert plan.expected_hours is not None
    assert 0.5 < plan.peak.mfu < 1
    assert plan.time.hours_low < plan.expected_hours < 2 * plan.time.hours_low


def test_a_run_that_was_faster_than_the_products_timed_now_is_at_the_peak_not_above_it() -> None:
    measured = Calibration(run="runs/x", machines="1 x CPU", factor=2.7, low=2.6, high=2.8)
    request = replace(request_for("real", REAL, BF16_CPU, 1, REAL_TEXT), calibration=measured)

    assert build_plan(request, choose_layout(request)).peak.mfu == 1


def test_memory_on_a_cpu_is_what_a_run_took() -> None:
    """Measured of recipe `real` in FP32, with 49,792 rows: 3.50e9 bytes, and 5.30e9 from the first checkpoint on."""
    plan = on_cpu(AVX2_CPU)

    assert 0.85 < plan.peak.memory.total_bytes / 5.30e9 < 1.15
    assert plan.model.vocabulary < 50_500
