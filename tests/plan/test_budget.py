"""Time, cost, failures, checkpoints and storage, put through the published runs."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.artifact import seal
from anadil.core.errors import RecipeError
from anadil.estimate.budget import (
    NODE_MTBF_S,
    CostEstimate,
    PhaseWork,
    PlanBudget,
    budget,
    checkpoint_bytes,
    checkpoint_interval,
    checkpoints_of,
    effective_training_time_ratio,
    reliability_of,
    rental_cost,
    storage_of,
    time_of,
    waste,
)
from anadil.estimate.instances import Machine, machine
from anadil.estimate.layout import layout_of, work_of
from anadil.estimate.model_shape import trained_shape
from anadil.estimate.speed import Calibration, calibrate, speed
from anadil.recipe.load import load_recipe

ONE_B = 1_177_946_112
"""Parameters of Llama 3.2 1B with a vocabulary of 100,000."""
STEP_TOKENS = 224 * 2_048
SWALLOW = PhaseWork(
    steps=75_000, tokens=314 * 10**9, flops=6 * 70.6e9 * 314e9, tokens_per_s=314e9 / 1_404_000
)
EMBEDDINGS = PhaseWork(
    steps=5_000, tokens=5_000 * STEP_TOKENS, flops=4e9 * 5_000 * STEP_TOKENS, tokens_per_s=STEP_TOKENS / 2.28
)
ALL = PhaseWork(
    steps=15_000,
    tokens=15_000 * STEP_TOKENS,
    flops=7e9 * 15_000 * STEP_TOKENS,
    tokens_per_s=STEP_TOKENS / 2.867,
)
RECIPE = load_recipe("azerbaijani-1b")
SHAPE = trained_shape(RECIPE)
P4D = machine("p4d.24xlarge")
GPU = "NVIDIA A100-SXM4-40GB"
RATES = [
    speed(SHAPE, layout_of(RECIPE, P4D, 2), work_of(RECIPE, P4D, phase.trains), P4D, 2).tokens_per_s
    for phase in RECIPE.pretrain.phases
]


def azerbaijani(
    machine: Machine, *, phases: tuple[PhaseWork, ...] = (EMBEDDINGS, ALL), nodes: int = 2
) -> PlanBudget:
    return budget(
        phases,
        machine,
        nodes,
        checkpoint_bytes=checkpoint_bytes(ONE_B, ONE_B, "fp32"),
        parameters=ONE_B,
        checkpoint_every=500,
        keep=3,
        epoch_tokens=2_500_000_000,
    )


@pytest.mark.parametrize(("parameters", "gigabytes"), [(7e9, 42), (13e9, 78), (70e9, 420), (405e9, 2_430)])
def test_a_bf16_checkpoint_has_its_published_size(parameters: float, gigabytes: float) -> None:
    size = int(parameters)

    assert checkpoint_bytes(size, size, "bf16") == gigabytes * 10**9


def test_a_frozen_phase_stores_only_the_moments_that_it_trains() -> None:
    assert checkpoint_bytes(1_000, 100, "bf16") == 2 * (1_000 + 2 * 100)


def test_405b_on_16_000_gpus_fails_every_150_minutes_and_writes_3_gb_a_second() -> None:
    mtbf_s = NODE_MTBF_S / 2_048

    size = checkpoint_bytes(405 * 10**9, 405 * 10**9, "bf16")

    plan = checkpoints_of(size, 405 * 10**9, stall_s=1, mtbf_s=mtbf_s, step_s=None, every=500, keep=3)

    assert mtbf_s == 150 * 60
    assert plan.intervals[0].rule == "MTBF / 10"
    assert (plan.intervals[0].interval_s, plan.intervals[0].steps) == (15 * 60, None)
    assert plan.bandwidth_bytes_per_s == pytest.approx(3.0e9)
    assert plan.synchronous_bandwidth_bytes_per_s == pytest.approx(27e9)


@pytest.mark.parametrize(
    ("stall_s", "interval_s", "percent"), [(1, 134, 1.5), (10, 424, 4.7), (45, 900, 10.0), (180, 1_800, 20.0)]
)
def test_the_interval_of_young_and_daly_grows_with_the_stall(
    stall_s: float, interval_s: float, percent: float
) -> None:
    found = checkpoint_interval(stall_s, 9_000)

    assert found == pytest.approx(interval_s, abs=0.5)
    assert 100 * waste(found, stall_s, 9_000) == pytest.approx(percent, abs=0.05)


def test_314_billion_tokens_on_256_gpus_take_16_days_and_6_hours() -> None:
    time = time_of([SWALLOW], 256, 989.4e12)

    assert time.hours == pytest.approx(16 * 24 + 6)
    assert time.gpu_hours == pytest.approx(99_840)
    assert time.hours_low is not None
    assert time.hours_high is not None
    assert time.hours_low < 390 < time.hours_high


def test_390_hours_of_32_machines_cost_their_published_price() -> None:
    cost = rental_cost(machine("p5.48xlarge"), 32, time_of([SWALLOW], 256, 989.4e12))

    assert cost.on_demand.predicted == pytest.approx(687_000, rel=0.001)
    assert cost.on_demand.per_hour == pytest.approx(32 * 55.04)
    assert cost.spot == cost.training_plan == CostEstimate(per_hour=None, predicted=None, low=None, high=None)


def test_the_range_of_hours_follows_from_the_share_of_the_peak() -> None:
    phase = PhaseWork(steps=10, tokens=10**9, flops=1e20, tokens_per_s=10**9 / 7_200)

    time = time_of([phase], 10, 4e15)

    assert time.hours == pytest.approx(2)
    assert time.hours_low == pytest.approx(1e20 / (10 * 4e15 * 0.50) / 3_600)
    assert time.hours_high == pytest.approx(1e20 / (10 * 4e15 * 0.25) / 3_600)


def test_a_measured_speed_has_no_range() -> None:
    time = time_of([SWALLOW], 256, 989.4e12, mfu_range=None)

    assert time.hours_low == time.hours_high == time.hours


def test_a_prediction_outside_the_published_range_widens_it() -> None:
    slow = replace(SWALLOW, tokens_per_s=SWALLOW.tokens_per_s / 10 if SWALLOW.tokens_per_s else None)

    time = time_of([slow], 256, 989.4e12)

    assert time.hours_high == time.hours == pytest.approx(3_900)


def test_checkpoints_at_a_step_of_three_seconds_are_counted_in_steps() -> None:
    found = checkpoints_of(1_000, 100, stall_s=1, mtbf_s=9_000, step_s=3, every=500, keep=3)

    assert [(each.rule, each.steps) for each in found.intervals] == [
        ("MTBF / 10", 300),
        ("Young-Daly", 45),
        ("recipe", 500),
    ]
    assert found.bandwidth_bytes_per_s == pytest.approx(1_000 / (1_500 * 0.9))
    assert (found.bytes_per_parameter, found.storage_bytes) == (10, 3_000)
    shorter = checkpoints_of(1_000, 100, stall_s=1, mtbf_s=9_000, step_s=5_000, every=1, keep=3)
    assert shorter.intervals[1].steps == 1


def test_failures_cost_half_an_interval_and_a_restart_each() -> None:
    mtbf_s = 1e6

    ratio = effective_training_time_ratio(1_000, 0, mtbf_s, restart_s=500)

    assert 1 - ratio == pytest.approx((1_000 / 2 + 500) / mtbf_s, rel=0.01)


def test_a_run_of_2_048_machines_trains_six_sevenths_of_its_time() -> None:
    found = reliability_of(9_000, stall_s=1, interval_s=900, hours=100)

    assert found.effective_training_time_ratio == pytest.approx(0.859, abs=0.001)
    assert found.lost_s_per_failure == 450
    assert found.wall_hours == pytest.approx(100 / 0.8594, rel=0.001)
    assert found.expected_failures == pytest.approx(100 / 0.8594 * 0.4, rel=0.001)


def test_a_run_shorter_than_its_interval_can_lose_no_more_than_itself() -> None:
    found = reliability_of(NODE_MTBF_S, stall_s=1, interval_s=1e6, hours=1)

    assert found.lost_s_per_failure == 1_800


def test_an_interval_that_never_ends_has_no_hours() -> None:
    found = reliability_of(10, stall_s=1, interval_s=100_000, hours=1_000)

    assert (found.effective_training_time_ratio, found.wall_hours, found.expected_failures) == (0, None, None)


def test_ids_are_loaded_at_the_pace_of_s3_and_not_of_efa() -> None:
    found = storage_of(2_500_000_000, 3_000, machine("p5.48xlarge").network)

    assert found.preload_s == pytest.approx(2.5e9 * 4 / 12.5e9)
    assert found.total_bytes == found.data_bytes + 3_000 == 25_000_003_000


def test_the_budget_of_the_published_run_holds_together() -> None:
    found = azerbaijani(machine("p4d.24xlarge"))

    time, checkpoints = found.time, found.checkpoints
    assert time.hours == pytest.approx(15.11, abs=0.01)
    assert found.cost.on_demand.predicted == pytest.approx(2 * 21.96 * 15.11, rel=0.001)
    assert checkpoints.bytes == 12 * ONE_B
    assert found.storage.checkpoints_bytes == 36 * ONE_B
    assert found.reliability.mtbf_s == 2_560 * 3_600
    assert found.reliability.effective_training_time_ratio == pytest.approx(0.999, abs=0.001)


def test_what_follows_from_a_speed_that_is_not_known_is_not_known() -> None:
    unknown = replace(machine("p4d.24xlarge"), flops_bf16=0.0, network=0.0)

    found = azerbaijani(unknown, phases=(replace(ALL, tokens_per_s=None),), nodes=1)

    assert (found.time.hours, found.time.gpu_hours, found.time.hours_per_epoch) == (None, None, None)
    assert (found.cost.on_demand.predicted, found.cost.on_demand.high) == (None, None)
    assert found.reliability.effective_training_time_ratio is None
    assert [each.steps for each in found.checkpoints.intervals] == [None, None]
    assert found.storage.preload_s is None
    assert math.isfinite(found.checkpoints.bandwidth_bytes_per_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def measured(
    folder: Path, *settings: str, rates: tuple[float, ...] = (0.5, 0.8), lines: int = 4, **summary: Any
) -> Calibration:
    """Calibration by a run that reached shares of the predicted rates, of which the first line is none."""
    folder.mkdir()
    summary = {
        "device": GPU, "world_size": 16, "parameters": SHAPE.parameters, "precision": "bf16", "packing_waste": 0.1,
    } | summary  # fmt: skip
    (folder / "training.json").write_text(json.dumps(summary))
    log = [
        {"step": number, "phase": phase + 1, "tokens_per_s": 0.9 * share * RATES[phase] if number else 1.0}
        for phase, share in enumerate(rates)
        for number in range(lines)
    ]
    (folder / "training.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in log))
    ran = load_recipe("azerbaijani-1b", settings)
    seal(folder, kind="model", origin={"stage": "pretrain"}, recipe=ran.model_dump(mode="json"))
    return calibrate(str(folder), RECIPE, P4D, SHAPE)


def test_the_factor_is_the_geometric_mean_of_the_phases_and_the_run_is_named(folder: Path) -> None:
    found = measured(folder)

    assert (found.low, found.high, found.factor) == pytest.approx((0.5, 0.8, 0.4**0.5))
    assert found.run == str(folder)
    assert found.machines == f"2 x p4d.24xlarge (16 x {GPU})"


def test_a_run_on_one_node_is_compared_with_the_prediction_for_one(folder: Path) -> None:
    found = measured(folder, "pretrain.parallelism.shard=8", world_size=8)

    assert found.low > 0.5 * RATES[0] / sum(RATES)
    assert found.machines.startswith("1 x p4d")


@pytest.mark.parametrize(
    ("settings", "summary", "said"),
    [
        (["base.model=meta-llama/Llama-3.2-3B"], {}, "base.model is meta-llama/Llama-3.2-3B"),
        ([], {"parameters": 7}, "the number of parameters is 7"),
        ([], {"device": "NVIDIA A100-SXM4-80GB"}, "the device is NVIDIA A100-SXM4-80GB, not A100 40 GB"),
        ([], {"device": "NVIDIA A100-PCIE-40GB"}, "the device is"),
        ([], {"device": "cpu"}, "the device is cpu"),
        (["cluster.instance=p5.48xlarge"], {}, "cluster.instance is p5.48xlarge, not p4d.24xlarge"),
        ([], {"world_size": 12}, "devices on each node"),
        ([], {"precision": "fp32"}, "precision is fp32, not bf16"),
        (["pretrain.sequence_length=1024"], {}, "sequence_length is 1024, not 2048"),
        (["pretrain.state=bf16"], {}, "state is bf16, not fp32"),
        ([], {"lines": 1}, "no phase logged two lines"),
    ],
)  # fmt: skip
def test_a_run_of_another_model_machine_or_precision_or_too_short_a_one_is_refused(
    folder: Path, settings: list[str], summary: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=f"--measured {folder}: .*{said}"):
        measured(folder, *settings, **summary)
