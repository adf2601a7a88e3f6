import json
import re
from pathlib import Path

import pytest

from anadil.core.errors import PreflightError
from anadil.core.format import GIB, MIB, human_bytes
from anadil.plan.instances import machine, this_machine
from anadil.plan.layout import layout_of, work_of
from anadil.plan.memory import layout_fit
from anadil.plan.model_shape import trained_shape
from anadil.preflight.memory import MAX_REMEDIES, check_finetune, check_fits
from anadil.recipe.load import load_recipe
from tests.plan.conftest import answers

A100 = "NVIDIA A100-SXM4-40GB, 40960"
WHOLE = ["pretrain.micro_batch_size=28", "pretrain.activation_checkpointing=none"]
LINE = re.compile(r"  ((?:--set \S+ ?)+) \((.+)\)")


def refused(name: str, overrides: list[str], *, here: bool) -> str:
    with pytest.raises(PreflightError) as error:
        check_fits(load_recipe(name, overrides), here=here)
    assert error.value.exit_code == 4
    return str(error.value)


COPIES = "pretrain.parallelism.shard=1"
"""A copy of the 1B model leaves no room on 40 GB for the recipe's micro-batch of 14."""


def remedies(text: str) -> list[tuple[list[str], str]]:
    """Overrides and bytes of each line after the first."""
    found = [LINE.fullmatch(line) for line in text.splitlines()[1:]]
    return [(match[1].replace("--set ", "").split(), match[2]) for match in found if match]


def test_a_refusal_names_model_layout_need_and_device() -> None:
    text = refused("azerbaijani-1b", [COPIES], here=False)

    recipe, kind = load_recipe("azerbaijani-1b", [COPIES]), machine("p4d.24xlarge")
    need, _ = layout_fit(trained_shape(recipe), layout_of(recipe, kind, 2), work_of(recipe, kind), kind)
    assert text.splitlines()[0] == (
        "pretrain does not fit: meta-llama/Llama-3.2-1B (1.18B parameters), DDP 16, micro-batch 14 of "
        f"2,048 tokens, needs {human_bytes(need)} on a device that has 39.4 GiB (p4d.24xlarge, A100 40 GB); "
        "what fits instead:"
    )


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("azerbaijani-1b", [COPIES]),
        ("azerbaijani-1b", [COPIES, "pretrain.batch_size=100", "pretrain.sequence_length=4096"]),
        ("azerbaijani-1b", [COPIES, "pretrain.state=bf16", "pretrain.kernels=torch", "cluster.nodes=1"]),
        ("azerbaijani-8b", [COPIES]),
        ("azerbaijani-8b", ["cluster.instance=g5.48xlarge"]),
        ("azerbaijani-8b", ["pretrain.parallelism={shard: 2, tensor: 4}", *WHOLE]),
        ("japanese-70b", [COPIES]),
        ("japanese-70b", ["cluster.nodes=2", "pretrain.parallelism.shard=16"]),
    ],
    ids=["1B", "1B, odd batch", "1B, bf16", "8B", "8B on A10G", "8B, TP 4", "70B", "70B, few machines"],
)
def test_what_a_refusal_offers_fits_when_it_is_set(name: str, overrides: list[str]) -> None:
    text = refused(name, overrides, here=False)

    offered = remedies(text)

    assert 0 < len(offered) <= MAX_REMEDIES
    assert len(offered) == len(text.splitlines()) - 1
    for settings, need in offered:
        line = check_fits(load_recipe(name, [*overrides, *settings]), here=False)
        assert line.startswith(f"pretrain needs {need} of ")
        assert line.endswith("(fits)")


def test_what_is_offered_for_this_machine_fits_on_it(driver: Path) -> None:
    answers(driver, *[A100] * 8)
    text = refused("azerbaijani-1b", [COPIES], here=True)

    offered = remedies(text)

    assert "(local, A100 40 GB)" in text
    assert offered
    for settings, need in offered:
        line = check_fits(load_recipe("azerbaijani-1b", [COPIES, *settings]), here=True, then=())
        assert line == f"pretrain needs {need} of 39.4 GiB per device (fits)"


def test_a_model_that_no_setting_makes_fit_says_so(driver: Path) -> None:
    answers(driver, "NVIDIA A10G, 23028")

    text = refused("japanese-70b", [COPIES], here=True)

    assert text.endswith("; no setting makes it fit: take a smaller base.model or a larger machine")
    assert "\n" not in text


def test_a_machine_that_is_large_enough_says_one_line(driver: Path) -> None:
    line = check_fits(load_recipe("smoke"), here=True, then=())

    assert not driver.exists()
    assert re.fullmatch(r"pretrain needs [\d.]+ MiB of [\d.]+ GiB per device \(fits\)", line)


def test_on_this_machine_the_recipes_cluster_does_not_count(driver: Path) -> None:
    answers(driver, *["NVIDIA H200, 143771"] * 8)

    line = check_fits(load_recipe("azerbaijani-1b", [COPIES]), here=True, then=())

    assert line.endswith(" GiB of 139.8 GiB per device (fits)")


def test_a_recipe_without_a_machine_type_is_for_this_machine(driver: Path) -> None:
    answers(driver, A100)
    recipe = load_recipe("smoke")

    assert recipe.cluster.instance is None
    assert check_fits(recipe, here=False) == check_fits(recipe, here=True)
    assert "of 39.4 GiB per device" in check_fits(recipe, here=False)


def test_a_tight_fit_is_no_refusal(driver: Path) -> None:
    answers(driver, "NVIDIA A100-SXM4-80GB, 81920")
    recipe = load_recipe("azerbaijani-1b", [COPIES, "pretrain.micro_batch_size=2"])
    kind = this_machine()
    need, word = layout_fit(trained_shape(recipe), layout_of(recipe, kind, 1), work_of(recipe, kind), kind)
    assert word == "fits"
    outside = 1.5 * GIB
    memory = (outside + (need - outside) / 0.965 + 0.6 * GIB) / MIB
    answers(driver, f"NVIDIA A100-SXM4-80GB, {memory:.0f}")

    assert check_fits(recipe, here=True, then=()).endswith("per device (tight)")


@pytest.mark.parametrize("name", ["azerbaijani-1b", "azerbaijani-8b", "japanese-1b", "japanese-70b"])
def test_a_shipped_recipe_fits_its_machines(name: str) -> None:
    assert check_fits(load_recipe(name), here=False).endswith("(fits)")


def test_a_type_that_is_trained_but_not_planned_is_not_refused(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma", **sizes}), encoding="utf-8")
    recipe = load_recipe("smoke", [f"base.model={tmp_path}"])
    settings = ("cluster.instance=p5.48xlarge", "pretrain.parallelism.pipeline=2", "pretrain.batch_size=64")
    cut = load_recipe("smoke", [f"base.model={tmp_path}", *settings])

    assert check_fits(recipe, here=True).startswith("the memory of pretrain is not checked: base.model")
    assert "'gemma' is not planned" in check_finetune(recipe, here=True)
    with pytest.raises(
        PreflightError, match=r"pretrain\.parallelism\.pipeline: 2 is not proven for .* 'gemma'"
    ):
        check_fits(cut, here=False)
