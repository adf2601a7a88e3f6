"""What the loop says once reaches every meter, and what they tell reaches every sink."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from anadil.estimate.budget import NODE_MTBF_S, checkpoint_interval, effective_training_time_ratio
from anadil.model.process_group import Group
from anadil.pretrain.metrics.metrics import Metrics, metrics_of
from anadil.pretrain.metrics.throughput import rates_of
from anadil.recipe.sections import Recipe
from anadil.runtime import prometheus
from anadil.runtime.job import Job
from tests.kit.gauges import fresh_gauges

CPU = torch.device("cpu")
CONFIG = LlamaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)


OPEN: list[Metrics] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No file of a meter stays open."""
    yield
    while OPEN:
        OPEN.pop().close()


def job_of(tmp_path: Path, **sections: Any) -> Job:
    recipe = Recipe.model_validate(sections)
    return Job(recipe=recipe, inputs={}, out=tmp_path / "out", work=tmp_path / "work", base_cache=tmp_path)


def made(tmp_path: Path, group: Group | None = None, **sections: Any) -> Metrics:
    metrics = metrics_of(job_of(tmp_path, **sections), group or Group(), CPU)
    OPEN.append(metrics)
    metrics.rates = rates_of(CONFIG, context=64, devices=1, device=CPU)
    return metrics


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Gauges of this process, as where a port is given and another process listens."""
    multiprocess = pytest.importorskip("prometheus_client.multiprocess", reason="needs prometheus-client")
    with fresh_gauges(monkeypatch, tmp_path):
        monkeypatch.setenv(prometheus.PORT_VARIABLE, "1")
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert prometheus._start()
        yield multiprocess.MultiProcessCollector(None, os.environ[prometheus.DIRECTORY_VARIABLE])


def step(metrics: Metrics, number: int, data_s: float = 0.002, compute_s: float = 0.006) -> None:
    with metrics.section("data"):
        time.sleep(data_s)
    with metrics.section("step"):
        time.sleep(compute_s)
        with metrics.stragglers.section(None):
            time.sleep(0.004)
    metrics.step_done(number)


def test_one_word_of_the_loop_feeds_accounts_and_own_work(tmp_path: Path) -> None:
    metrics = made(tmp_path)
    metrics.resume_after(0)

    for number in range(1, 6):
        step(metrics, number, compute_s=0.05)  # far from the data's: a busy machine sleeps longer
    with metrics.section("checkpoint"):
        time.sleep(0.01)

    own = metrics.stragglers.times()
    assert 0.002 <= own["data"] < own["compute"]
    assert metrics.goodput.seconds["step"] >= 5 * 0.054
    assert own["compute"] * 5 <= metrics.goodput.seconds["step"] - 5 * 0.004
    assert metrics.goodput.seconds["checkpoint"] >= 0.01


def test_what_came_before_the_first_step_is_nobodys_own_work(tmp_path: Path) -> None:
    metrics = made(tmp_path)
    with metrics.section("data"):
        time.sleep(0.2)

    metrics.resume_after(0)
    step(metrics, 1)

    assert metrics.stragglers.times()["data"] < 0.1
    assert metrics.goodput.seconds["data"] >= 0.2


def test_the_logged_line_holds_rates_goodput_waits_stall_and_cost(tmp_path: Path) -> None:
    metrics = made(tmp_path, cluster={"instance": "p5.48xlarge"})
    metrics.resume_after(0)
    step(metrics, 1)
    with metrics.section("checkpoint"):
        time.sleep(0.01)

    line = metrics.figures(1_000, 2.0, "all")

    assert line["tokens_per_s"] == 500
    # Share of the time since this process began, which also ran other tests.
    assert line["goodput"] == pytest.approx(metrics.goodput.shares()["step"], abs=1e-4)
    assert 0 < metrics.goodput.shares()["step"] < 1
    assert 0.002 <= line["data_wait_s"] < 1
    assert 0.01 <= line["checkpoint_stall_s"] < 1
    assert line["cost_usd"] == pytest.approx(55.04 * metrics.goodput.running_s / 3600, abs=0.02)
    assert "mfu" not in line
    assert "straggler_ratio" not in line
    assert sum(metrics.time_shares().values()) == pytest.approx(1, abs=1e-4)


def test_every_number_has_a_metric_that_the_reference_explains(tmp_path: Path, gauges: Any) -> None:
    metrics = made(tmp_path, cluster={"instance": "p5.48xlarge"})
    metrics.resume_after(0)
    step(metrics, 1)
    with metrics.section("checkpoint"):
        pass
    line = {**metrics.figures(1_000, 2.0, "all"), **metrics.time_shares(), "validation_bits_per_byte": 1.0}
    line |= {"mfu": 0.5, "straggler_ratio": 1.0}

    prometheus.set_gauges("pretrain", line, 1)
    metrics.show_own(12)

    samples = {metric.name: metric.samples for metric in gauges.collect()}
    assert samples.keys() <= prometheus.HELP.keys()
    assert [sample.value for sample in samples["anadil_peak_memory_bytes"]] == [12]
    assert {"part": "step", "rank": "0", "stage": "pretrain"} in [
        sample.labels for sample in samples["anadil_time_share"]
    ]


def test_the_budget_is_over_when_the_time_on_the_machines_is(tmp_path: Path) -> None:
    metrics = made(tmp_path, pretrain={"faults": {"budget_hours": 1.0}})

    before = metrics.budget.reached(metrics.goodput.running_s)
    metrics.goodput.seconds["restart"] += 3600
    while_down = metrics.budget.reached(metrics.goodput.running_s)
    metrics.goodput.seconds["step"] += 3600

    assert (before, while_down) == (None, None)
    assert "pretrain.faults.budget_hours" in (metrics.budget.reached(metrics.goodput.running_s) or "")


def test_the_summary_tells_causes_cost_and_the_best_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = made(
        tmp_path, cluster={"instance": "p5.48xlarge", "nodes": 2}, pretrain={"checkpoint_every": 5}
    )
    metrics.resume_after(0)
    assert set(metrics.summary(9)) == {"time", "cost_usd"}
    metrics.goodput.seconds |= {"step": 20.0, "checkpoint": 6.0}
    metrics.goodput.counts["checkpoint"] = 2
    metrics.goodput._marks = [(10, 20.0)]
    metrics.summary(1)  # shorter than the best interval, which would be no advice
    assert "checkpoints every" not in caplog.text

    with caplog.at_level(logging.INFO):
        summary = metrics.summary(10**6)

    mtbf_s, interval = NODE_MTBF_S / 2, summary["checkpoint_interval"]
    assert (interval["seconds"], interval["stall_s"], interval["mtbf_s"]) == (10, 3, mtbf_s)
    assert interval["best_every"] == round(checkpoint_interval(3, mtbf_s) / 2)
    assert interval["best_waste"] < interval["waste"]
    assert interval["expected_goodput"] == round(effective_training_time_ratio(10, 3, mtbf_s), 6)
    assert summary["time"]["goodput"] == summary["time"]["causes"]["step"]["share"]
    assert "time of all 1 starts: " in caplog.text
    assert (
        "checkpoints every 5 steps (10 s) stall 3 s each and waste 30 % with a failure every 2,560 h (assumed); "
        f"every {interval['best_every']:,} steps (2 h 3 min) would waste least, 0.081 %"
    ) in caplog.text


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    metrics = made(tmp_path, Group(rank=1, local_rank=1))
    metrics.resume_after(0)
    step(metrics, 1)

    metrics.close()

    assert not (tmp_path / "work").exists()
