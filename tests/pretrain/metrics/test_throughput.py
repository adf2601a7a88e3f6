"""Throughput, share of the peak, cost, and the end of a budget."""

import json
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed as dist
from transformers import LlamaConfig

from anadil.core.errors import DataError, PreflightError
from anadil.estimate.instances import machine
from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.model.process_group import Group
from anadil.pretrain.metrics.throughput import (
    AGAIN_S,
    FEWEST,
    IN_A_ROW,
    SECTIONS,
    WINDOW,
    RunBudget,
    Stragglers,
    Throughput,
    peak_of,
    rates_of,
    recipe_budget,
    slow_ranks,
    usd_per_hour,
)
from anadil.pretrain.profiler import PROFILE, TRACE, profiled
from anadil.pretrain.run import run
from anadil.recipe.cluster import Cluster
from anadil.recipe.pretrain import Faults
from tests.kit.pretraining import SHORT, make_job, make_recipe
from tests.kit.ranks import in_ranks


def step() -> None:
    weight = torch.ones(30, 8, requires_grad=True)
    (torch.ones(5, 8) @ weight.T).sum().backward()  # type: ignore[no-untyped-call]


def steps_of(folder: Path) -> set[str]:
    events = json.loads((folder / TRACE).read_text())["traceEvents"]
    return {event["name"] for event in events if event["name"].startswith("ProfilerStep")}


def test_only_the_steps_that_are_asked_for_are_traced(tmp_path: Path) -> None:
    with profiled(tmp_path, 2, 3, CPU) as tracing:
        for _ in range(8):
            step()
            tracing.step()

    assert steps_of(tmp_path) == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}


def test_training_that_ends_early_leaves_what_was_traced(tmp_path: Path) -> None:
    with profiled(tmp_path, 1, 50, CPU) as tracing:
        for _ in range(3):
            step()
            tracing.step()

    assert {"ProfilerStep#1", "ProfilerStep#2"} <= steps_of(tmp_path)


@pytest.mark.parametrize(("first", "num", "warnings"), [(10, 2, 1), (3, 1, 1)])
def test_where_no_step_is_traced_nothing_is_written_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, num: int, warnings: int
) -> None:
    with profiled(tmp_path, first, num, CPU) as tracing:
        for _ in range(3):
            step()
            tracing.step()

    assert list(tmp_path.iterdir()) == []
    assert caplog.text.count("pretrain.profile_steps: nothing is traced") == warnings


@pytest.mark.slow
def test_of_a_run_with_few_steps_the_last_ones_are_traced(tmp_path: Path, base: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, profile_steps=3, phases=SHORT))

    run(job)

    assert steps_of(job.out / PROFILE) == {"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"}


ONE_B = shape_from(KNOWN["meta-llama/Llama-3.2-1B"], "1B")


def test_the_published_throughput_of_a_1b_on_h100_gives_its_published_share_of_the_peak() -> None:
    rates = Throughput(shape=ONE_B, context=2_048, devices=8, peak_flops=989.4e12)

    found = rates.figures(63_771 * 8 * 60, 60, "all")

    assert found["tokens_per_s"] == 510_168
    assert found["tokens_per_s_per_device"] == 63_771
    # 6 N alone is 47.8 %.
    assert found["mfu"] == pytest.approx(0.530, abs=0.0005)


def test_frozen_layers_count_less() -> None:
    rates = Throughput(shape=ONE_B, context=2_048, devices=1, peak_flops=1e15)

    whole = rates.figures(1e6, 10, "all")["mfu"]
    frozen = rates.figures(1e6, 10, "embeddings")["mfu"]

    layers = ONE_B.layers * ONE_B.layer_matrices
    assert whole - frozen == pytest.approx(2 * layers * 1e5 / 1e15, abs=2e-5)


def test_a_cpu_has_rates_and_no_share_of_a_peak() -> None:
    config = LlamaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)

    rates = rates_of(config, context=64, devices=2, device=torch.device("cpu"))

    assert rates.shape.vocabulary == 300
    assert rates.figures(1_000, 2, "all") == {"tokens_per_s": 500, "tokens_per_s_per_device": 250}


def test_a_model_without_the_sizes_of_a_llama_has_no_rates() -> None:
    config = LlamaConfig()
    config.hidden_size = 0

    with pytest.raises(DataError, match="hidden_size is 0, not a size"):
        rates_of(config, context=64, devices=1, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H200", 989.4),
        ("NVIDIA B200", 2_250),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        *((f"NVIDIA {name}", None) for name in ("H100 PCIe", "H100 NVL", "GH200 480GB", "A100-PCIE-40GB")),
    ],
)
def test_the_peak_of_a_gpu_goes_by_its_drivers_name(name: str, tflops: float | None) -> None:
    assert peak_of(name) == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_the_price_is_that_of_all_machines() -> None:
    each = machine("p5.48xlarge").on_demand
    assert each is not None

    assert usd_per_hour(Cluster(instance="p5.48xlarge", nodes=4)) == each * 4
    assert usd_per_hour(Cluster(instance="ml.p5.48xlarge")) == each
    assert usd_per_hour(Cluster()) is None
    assert usd_per_hour(Cluster(instance="x9.huge")) is None
    assert usd_per_hour(Cluster(instance="p5e.48xlarge")) is None


@pytest.mark.parametrize(
    ("budget", "seconds", "words"),
    [
        (RunBudget(hours=2, usd=None, usd_per_hour=None), 7_200, "2 h of 2 hours; .*larger .*budget_hours"),
        (
            RunBudget(hours=100, usd=1_000, usd_per_hour=200),
            18_000,
            "1,000.00 USD of 1,000 USD; .*budget_usd",
        ),
    ],
)
def test_a_budget_ends_when_its_hours_or_its_money_are_used_up(
    budget: RunBudget, seconds: float, words: str
) -> None:
    assert budget.reached(seconds - 1) is None
    assert re.match(f"the budget is used up: {words}", budget.reached(seconds) or "")
    assert RunBudget(hours=None, usd=None, usd_per_hour=200).reached(1e12) is None


def test_a_budget_of_money_needs_a_price() -> None:
    with pytest.raises(PreflightError, match=r"the price of cluster.instance \(not set\) is not known"):
        recipe_budget(Faults(budget_usd=10), Cluster())
    with pytest.raises(PreflightError, match=r"\(p5e.48xlarge\) is not known; set cluster.instance"):
        recipe_budget(Faults(budget_usd=10), Cluster(instance="p5e.48xlarge"))


def test_the_recipe_gives_the_budget() -> None:
    found = recipe_budget(Faults(budget_usd=10, budget_hours=3), Cluster(instance="g5.48xlarge", nodes=2))

    assert (found.hours, found.usd) == (3, 10)
    assert found.usd_per_hour == pytest.approx(2 * 16.29)


RATIO = 1.2
CPU = torch.device("cpu")
MEANS = np.array([0.010, 0.200, 0.004])
"""Seconds per step in data, compute, save."""


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def rows_of(
    means: np.ndarray, probes: Sequence[float] | None = None, whole_s: float = 0.2
) -> list[list[float]]:
    """With what goes beside the sections: compute with its waits, and the time of the probe."""
    probed = [0.0] * len(means) if probes is None else probes
    return [[*row.tolist(), whole_s, probe] for row, probe in zip(means, probed, strict=True)]


def simulated(random: np.random.Generator, ranks: int, noise: float = 0.05) -> np.ndarray:
    """Mean own work of each process over a window, each step uniformly noisy."""
    steps = MEANS * random.uniform(1 - noise, 1 + noise, size=(WINDOW, ranks, len(SECTIONS)))
    means: np.ndarray = steps.mean(axis=0)
    return means


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 256])
def test_noise_of_five_percent_names_nobody(ranks: int) -> None:
    random = np.random.default_rng(ranks)

    named = [slow_ranks(rows_of(simulated(random, ranks)), RATIO) for _ in range(200)]

    assert not any(named)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 256])
@pytest.mark.parametrize("section", SECTIONS)
def test_a_process_that_is_half_slower_is_named_with_its_section(ranks: int, section: str) -> None:
    random = np.random.default_rng(ranks)
    at = SECTIONS.index(section)
    excess = 0.5 * MEANS.sum()
    hits = 0

    for _ in range(100):
        slow = int(random.integers(ranks))
        means = simulated(random, ranks)
        means[slow, at] += excess
        found = slow_ranks(rows_of(means), RATIO)
        hits += list(found) == [(slow, section)]

    assert hits == 100


def test_two_slow_processes_of_eight_are_both_named() -> None:
    means = np.tile(MEANS, (8, 1))
    means[2, 0] += 0.1
    means[5, 1] += 0.2

    found = slow_ranks(rows_of(means), RATIO)

    assert list(found) == [(2, "data"), (5, "compute")]
    assert "takes 1.93 x the median" in found[5, "compute"]
    assert "compute 400 ms a step, median 200 ms;" in found[5, "compute"]


def test_differences_of_a_few_milliseconds_name_nobody() -> None:
    means = np.array([[0.001, 0.002, 0.0], [0.001, 0.006, 0.0]])

    assert slow_ranks(rows_of(means), RATIO) == {}


def test_a_slow_gpu_is_named_by_its_probe_though_all_wait_equally_long() -> None:
    means = np.tile(MEANS, (4, 1))

    found = slow_ranks(rows_of(means, [0.002, 0.002, 0.003, 0.002]), RATIO)

    assert list(found) == [(2, "compute")]
    assert "compute 300 ms a step" in found[2, "compute"]


def test_a_host_that_is_late_with_its_gpus_work_is_named() -> None:
    means = np.tile([0.010, 0.020, 0.0], (4, 1))
    means[1, 1] += 0.150

    found = slow_ranks(rows_of(means, [0.002] * 4), RATIO)

    assert list(found) == [(1, "compute")]
    assert "compute 350 ms a step, median 200 ms;" in found[1, "compute"]


def test_waiting_for_others_does_not_count_and_a_block_takes_its_time_out_of_the_one_around() -> None:
    clock = Clock()
    meter = Stragglers(Group(), RATIO, CPU, now=clock.now)
    with meter.section("compute"):
        clock.seconds += 2
        with meter.section(None):
            clock.seconds += 30
        with meter.section("data"):
            clock.seconds += 1
        clock.seconds += 1
    clock.seconds += 50
    meter.step_done()

    assert meter.times() == {"data": 1, "compute": 3, "save": 0}


def test_only_the_last_steps_count() -> None:
    clock = Clock()
    meter = Stragglers(Group(), RATIO, CPU, now=clock.now)
    for step in range(2 * WINDOW):
        with meter.section("compute"):
            clock.seconds += 10 if step < WINDOW else 1
        meter.step_done()

    assert meter.times()["compute"] == 1


class Recorded(Stragglers):
    """Gathers what the test says."""

    def __init__(self, rows: list[list[float]], steps: int = WINDOW, device: str = "cuda") -> None:
        self.clock = Clock()
        super().__init__(Group(), RATIO, torch.device(device), now=self.clock.now)
        self.rows = rows
        for _ in range(steps):
            self.step_done()

    def _gathered(self, mine: Sequence[float]) -> list[tuple[float, ...]]:
        return [tuple(row) for row in self.rows]


def late(rank: int, excess_s: float = 0.15) -> list[list[float]]:
    """Four processes, of which one waits for its data."""
    means = np.tile(MEANS, (4, 1))
    means[rank, 0] += excess_s
    return rows_of(means)


def test_a_case_is_told_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    meter = Recorded(late(3))

    with caplog.at_level(logging.WARNING):
        for rank in (3, 3, 0, 3):
            meter.rows = late(rank) if rank else late(3, 0.0)
            found = meter.compare()
        told = [record.getMessage() for record in caplog.records]
        meter.clock.seconds += AGAIN_S
        meter.compare()

    assert found.ratio == pytest.approx(0.364 / 0.214)
    said = (
        "process 3 takes 1.70 x the median of the processes for its own work: data 160 ms a step, "
        "median 10.0 ms; check its node's disk and CPUs"
    )
    assert told == [said]
    assert [record.getMessage() for record in caplog.records] == [said, said]


def test_on_shared_cpus_only_who_stays_slow_is_named(caplog: pytest.LogCaptureFixture) -> None:
    meter = Recorded(late(3), device="cpu")

    with caplog.at_level(logging.WARNING):
        for step in range(60):  # whoever has to wait for the CPU, now this one and now that one
            meter.rows = late(step % 4)
            found = meter.compare()
        noise = len(caplog.records)
        meter.rows = late(2)
        for _ in range(IN_A_ROW + 5):
            meter.compare()

    assert len(found.slow) == 1  # for the metrics it counts all the same
    assert noise == 0
    assert [record.getMessage()[:9] for record in caplog.records] == ["process 2"]


def test_nobody_is_named_in_the_first_steps() -> None:
    slow = np.tile(MEANS, (4, 1))
    slow[0, 1] *= 3

    assert Recorded(rows_of(slow), FEWEST - 1).compare().slow == {}
    assert len(Recorded(rows_of(slow), FEWEST).compare().slow) == 1


def test_a_process_alone_is_its_own_median() -> None:
    meter = Stragglers(Group(), RATIO, CPU)
    for _ in range(WINDOW):
        with meter.section("compute"):
            pass
        meter.step_done()

    found = meter.compare()

    assert found.slow == {}
    assert found.ratio == 1


def one_of_two_is_slow(rank: int, root: str) -> None:
    logging.basicConfig(level=logging.WARNING, filename=f"{root}/rank-{rank}.log")
    meter = Stragglers(Group(rank=rank, size=2, host=dist.new_group(backend="gloo")), RATIO, CPU)
    for _ in range(20):
        with meter.section("data"):
            time.sleep(0.002)
        with meter.section("compute"):
            time.sleep(0.03 if rank == 1 else 0.015)
            with meter.section(None):
                dist.all_reduce(torch.zeros(1))
        meter.step_done()
    for _ in range(3):
        found = meter.compare()
    Path(root, f"rank-{rank}.json").write_text(json.dumps(list(found.slow)))


def test_of_two_processes_over_gloo_both_learn_which_one_is_slow(tmp_path: Path) -> None:
    in_ranks(one_of_two_is_slow, 2, str(tmp_path))

    assert [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)] == [
        [[1, "compute"]],
        [[1, "compute"]],
    ]
    said = [(tmp_path / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert "process 1 takes" in said[0]
    assert said[1] == ""
