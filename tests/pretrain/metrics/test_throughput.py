"""Throughput, share of the peak, cost, and the end of a budget."""

import re

import pytest
import torch
from transformers import LlamaConfig

from anadil.core.errors import DataError, PreflightError
from anadil.plan.instances import machine
from anadil.plan.model_shape import KNOWN, shape_from
from anadil.pretrain.metrics.throughput import (
    RunBudget,
    Throughput,
    peak_of,
    rates_of,
    recipe_budget,
    usd_per_hour,
)
from anadil.recipe.cluster import Cluster
from anadil.recipe.pretrain import Faults

ONE_B = shape_from(KNOWN["meta-llama/Llama-3.2-1B"], "1B")


def test_the_published_throughput_of_a_1b_on_h100_gives_its_published_share_of_the_peak() -> None:
    rates = Throughput(shape=ONE_B, context=2_048, devices=8, peak_flops=989.4e12)

    found = rates.figures(63_771 * 8 * 60, 60, "all")

    assert found["tokens_per_s"] == 510_168
    assert found["tokens_per_s_per_device"] == 63_771
    # 6 N alone is 47.8 %.
    assert found["mfu"] == pytest.approx(0.530, abs=0.0005)


def test_embeddings_that_are_looked_up_do_no_arithmetic() -> None:
    assert ONE_B.flops_per_token(2_048) == 6 * 1_235_746_816 + 12 * 16 * 2_048 * 2_048


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
    ],
)
def test_the_peak_of_a_gpu_goes_by_its_drivers_name(name: str, tflops: float) -> None:
    assert peak_of(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "Tesla T4", "NVIDIA A100-PCIE-40GB"]
)
def test_a_gpu_that_is_not_in_the_table_has_no_peak(name: str) -> None:
    assert peak_of(name) is None


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
    assert re.fullmatch(f"the budget is used up: {words}", budget.reached(seconds) or "")
    assert RunBudget(hours=None, usd=None, usd_per_hour=200).reached(1e12) is None


def test_a_budget_of_money_needs_a_price() -> None:
    with pytest.raises(PreflightError, match=r"the price of cluster.instance \(not set\) is not known"):
        recipe_budget(Faults(budget_usd=10), Cluster())
    with pytest.raises(
        PreflightError, match=r"\(p5e.48xlarge\) is not known; set cluster.instance to a type"
    ):
        recipe_budget(Faults(budget_usd=10), Cluster(instance="p5e.48xlarge"))


def test_the_recipe_gives_the_budget() -> None:
    found = recipe_budget(Faults(budget_usd=10, budget_hours=3), Cluster(instance="g5.48xlarge", nodes=2))

    assert (found.hours, found.usd) == (3, 10)
    assert found.usd_per_hour == pytest.approx(2 * 16.29)
