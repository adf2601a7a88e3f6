import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.artifact import seal
from anadil.core.errors import RecipeError
from anadil.plan.calibration import Calibration, calibrate
from anadil.plan.instances import machine
from anadil.plan.layout import layout_of, work_of
from anadil.plan.model_shape import trained_shape
from anadil.plan.speed import speed
from anadil.recipe.load import load_recipe

RECIPE = load_recipe("azerbaijani-1b")
SHAPE = trained_shape(RECIPE)
P4D = machine("p4d.24xlarge")
GPU = "NVIDIA A100-SXM4-40GB"
RATES = [
    speed(SHAPE, layout_of(RECIPE, P4D, 2), work_of(RECIPE, P4D, phase.trains), P4D, 2).tokens_per_s
    for phase in RECIPE.pretrain.phases
]


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
    ],
)  # fmt: skip
def test_a_run_of_another_model_machine_or_precision_is_refused(
    folder: Path, settings: list[str], summary: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=f"--measured {folder}: .*{said}"):
        measured(folder, *settings, **summary)


def test_a_run_too_short_to_be_measured_is_refused(folder: Path) -> None:
    with pytest.raises(RecipeError, match="no phase logged two lines"):
        measured(folder, lines=1)
