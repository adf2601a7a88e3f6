"""Chats for a model that finetune cannot hold are refused before pre-training, not after it."""

from dataclasses import replace
from pathlib import Path

import pytest

from anadil.cli import main
from anadil.cli.doctor.local import run_checks
from anadil.core.errors import PreflightError
from anadil.core.format import GIB
from anadil.plan.finetuning import check_finetune_fits, finetune_memory
from anadil.plan.instances import CPU, machine
from anadil.plan.model_shape import trained_shape
from anadil.plan.preflight import check_finetune, check_fits
from anadil.recipe.load import load_recipe

CHATS = "finetune.inputs=[s3://bucket/chats.jsonl]"
REFUSAL = r"finetune does not fit: it runs in one process on one device, and meta-llama/Llama-3\.3-70B"


def test_chats_for_70b_are_refused_with_the_need_and_the_remedy() -> None:
    with pytest.raises(PreflightError, match=REFUSAL) as error:
        check_fits(load_recipe("japanese-70b", [CHATS]), here=False)

    assert "on a device that has 79.1 GiB (p5.48xlarge, H100)" in str(error.value)
    assert "--set 'finetune.inputs=[]'" in str(error.value)
    assert "batch_size=" not in str(error.value)  # not one chat fits


@pytest.mark.parametrize(
    "command", [["plan"], ["submit", "--namespace", "x", "--host", "http://127.0.0.1:9"]]
)
def test_plan_and_submit_refuse_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*command, "japanese-70b", "--set", CHATS]) == 4
    assert "finetune does not fit" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_a_launch_of_either_stage_is_checked(stage: str) -> None:
    from anadil.launch.launcher import CHECKS

    with pytest.raises(PreflightError, match=REFUSAL):
        CHECKS[stage](load_recipe("japanese-70b", [CHATS]), here=False)


def test_doctor_shows_what_finetune_needs_here(tmp_path: Path) -> None:
    checks = {check.name: check for check in run_checks("smoke", [], tmp_path)}

    assert "finetune needs" in checks["memory"].detail


def test_without_chats_or_without_finetune_the_run_is_not_refused() -> None:
    with_chats = load_recipe("japanese-70b", [CHATS])

    assert "finetune" not in check_fits(load_recipe("japanese-70b"), here=False)
    assert "finetune" not in check_fits(with_chats, here=False, finetunes=False)


def test_a_batch_that_is_too_large_is_told_the_largest_that_fits() -> None:
    recipe = load_recipe("azerbaijani-8b", ["finetune.batch_size=4000", "cluster.instance=p5.48xlarge"])

    with pytest.raises(PreflightError) as error:
        check_finetune(recipe, here=False)

    size = int(str(error.value).partition("finetune.batch_size=")[2].partition(",")[0])
    fitting = load_recipe("azerbaijani-8b", [f"finetune.batch_size={size}"])
    assert 100 < size < 4000
    assert "(fits)" in check_finetune(fitting, here=False)


@pytest.mark.parametrize(("device", "size", "more"), [("H100", 2, 8), (CPU, 4, 200)])
def test_the_weights_lie_on_one_device_in_the_precision_that_finetune_loads(
    device: str, size: int, more: int
) -> None:
    recipe = load_recipe("azerbaijani-8b")
    kind = replace(machine("p5.48xlarge"), device=device, memory_bytes=1_000 * GIB)
    shape = trained_shape(recipe)

    need = finetune_memory(shape, recipe, kind)

    assert shape.parameters * size < need < shape.parameters * size + more * GIB
    assert "(fits)" in check_finetune_fits(shape, recipe, kind)
