"""The nodes and GPUs that pods and jobs of a stage ask for."""

import logging
from dataclasses import replace

import pytest

from anadil.plan.instances import CPU, machine
from anadil.plan.stage_memory import stage_devices
from anadil.recipe.load import load_recipe
from tests.kit.jobs import job

P5 = machine("p5.48xlarge")
SEVENTY = load_recipe("japanese-70b")


@pytest.mark.parametrize(
    ("stage", "overrides", "expected"),
    [
        ("clean", [], (1, 0)),
        ("pretrain", [], (4, 8)),
        ("finetune", [], (1, 4)),
        ("finetune", ["finetune.quantization=4bit"], (1, 1)),
        ("finetune", ["finetune.trains=all", "finetune.batch_size=32"], (3, 8)),
        ("evaluate", [], (1, 4)),
        ("evaluate", ["cluster.resources.evaluate.gpus=8"], (1, 8)),
    ],
)
def test_each_takes_the_fewest_that_hold_what_it_loads(
    stage: str, overrides: list[str], expected: tuple[int, int]
) -> None:
    assert stage_devices(stage, load_recipe("japanese-70b", overrides), P5, 4) == expected


def test_a_machine_without_gpus_gives_none() -> None:
    assert stage_devices("finetune", SEVENTY, replace(P5, device=CPU), 4) == (1, 0)


def test_a_model_that_is_not_here_asks_for_one_gpu_and_says_how_to_ask_for_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = load_recipe("japanese-70b", ["base.model=/not/here"])

    with caplog.at_level(logging.WARNING):
        assert stage_devices("finetune", recipe, P5, 1) == (1, 1)

    assert "cluster.resources.finetune.gpus=N asks for more" in caplog.text


def test_a_job_of_finetune_has_a_process_for_each_of_its_gpus() -> None:
    whole = job("japanese-70b", "finetune.trains=all", "finetune.batch_size=32", stage="finetune")

    assert (job("japanese-70b", stage="finetune").nodes, job("japanese-70b", stage="finetune").processes) == (
        1,
        4,
    )
    assert (whole.nodes, whole.devices, whole.processes) == (3, 8, 8)
    assert job("japanese-70b", "cluster.instance=null", stage="finetune").processes == 1
