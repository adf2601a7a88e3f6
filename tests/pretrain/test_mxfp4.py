"""A base whose experts are packed in MXFP4."""

import json
import os
import shutil
import signal
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from anadil.artifacts.weight_files import ALONE
from anadil.core.errors import IntegrityError, PreflightError
from anadil.model import mxfp4
from anadil.model.architecture import check_fit
from anadil.model.load import load_model
from anadil.model.tiny import base_model
from anadil.preflight.base_model import inspect_base
from anadil.pretrain.run import run
from anadil.recipe.sections import Base
from tests.kit.families import make_family
from tests.kit.mxfp4 import in_groups, pack_experts
from tests.kit.pretraining import SHORT, losses, make_job, make_recipe, make_tokenizer

PACKED = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """GPT-OSS with experts in MXFP4, as published, and `plain` beside it with them in BF16."""
    made = make_tokenizer(make_family(tmp_path / "packed", "gpt_oss"))
    plain = make_tokenizer(tmp_path / "plain")
    tensors = {name: each.bfloat16() for name, each in load_file(made / ALONE).items()}
    tensors = pack_experts(tensors)
    save_file(tensors, made / ALONE, {"format": "pt"})
    config = json.loads((made / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config))
    (made / "config.json").write_text(json.dumps(config | PACKED))
    stacks = [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]
    for name in stacks:
        parts = tensors.pop(f"{name}_blocks"), tensors.pop(f"{name}_scales")
        tensors[name] = convert_moe_packed_tensors(*parts)
    save_file(tensors, plain / ALONE, {"format": "pt"})
    return made


def test_a_packed_base_is_unpacked_once_as_transformers_unpacks_it(
    packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    check_fit(packed)

    made, again = (base_model(Base(model=str(packed)), tmp_path / "cache") for _ in range(2))

    assert made == again
    assert made.parent == tmp_path / "cache"
    assert caplog.text.count("unpacking experts in MXFP4 to ") == 1
    assert "quantization_config" not in json.loads((made / "config.json").read_text())
    found, expected = load_file(made / ALONE), load_file(tmp_path / "plain" / ALONE)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], each) for name, each in expected.items())
    original = load_file(make_family(tmp_path / "again", "gpt_oss") / ALONE)
    for name in (each for each in original if each.endswith(("gate_up_proj", "down_proj"))):
        groups = in_groups(original[name]).abs()
        # Neighbours of the format are 2 powers of the block apart at most, and what is above 6 of them becomes 6.
        worst = 2 ** groups.amax(-1, keepdim=True).log2().floor() / 2
        away = in_groups(found[name].float() - original[name]).abs()
        assert (away <= worst).all(), name
    assert sorted(each.name for each in (tmp_path / "cache").iterdir()) == [made.name]


@pytest.mark.slow
def test_a_run_on_a_packed_base_is_that_on_the_unpacked_one(base: Path, packed: Path, tmp_path: Path) -> None:
    for name in ("packed", "plain"):
        for file in base.iterdir():
            if file.name not in ("config.json", ALONE):
                shutil.copy(file, tmp_path / name / file.name)
        run(make_job(tmp_path, make_recipe(tmp_path / name, phases=SHORT, batch_size=4), f"of_{name}"))

    one, two = (tmp_path / f"of_{name}/out" for name in ("packed", "plain"))
    assert losses(one) == losses(two)
    written: Any = AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32)
    for name, parameter in AutoModelForCausalLM.from_pretrained(two, dtype=torch.float32).named_parameters():
        assert torch.equal(written.get_parameter(name), parameter), name


def test_a_killed_unpacking_leaves_nothing_that_looks_whole(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def kill(*given: Any) -> torch.Tensor:
        written.append(given)
        if len(written) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given)

    plain = mxfp4.unpack
    monkeypatch.setattr(mxfp4, "unpack", kill)
    process = get_context("fork").Process(
        target=base_model, args=(Base(model=str(packed)), tmp_path / "cache")
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert [each for each in (tmp_path / "cache").iterdir() if not each.name.startswith(".")] == []
    monkeypatch.undo()

    load_model(base_model(Base(model=str(packed)), tmp_path / "cache"))

    assert [each.name for each in (tmp_path / "cache").iterdir() if each.name.startswith(".")] == []


def test_a_disk_that_fills_up_while_a_base_is_unpacked_keeps_nothing_of_it(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mxfp4, "unpack", fill)

    with pytest.raises(OSError, match="No space left"):
        base_model(Base(model=str(packed)), tmp_path / "cache")

    assert [each for each in (tmp_path / "cache").rglob("*") if each.is_file() and each.name != "lock"] == []


def test_a_disk_without_room_for_the_unpacked_base_is_refused_with_numbers(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(packed)
    assert "unpacked once to " in inspect_base(recipe).detail
    free = SimpleNamespace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    words = r"base\.model: its experts are packed \(MXFP4\).* takes [\d.]+ [KM]i?B in .*, and 1[.\d]* \w+ are free"

    with pytest.raises(PreflightError, match=words):
        base_model(Base(model=str(packed)), tmp_path / "cache")
    with pytest.raises(PreflightError, match=words):
        inspect_base(recipe)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, r"its weights are quantized \(fp8\)"),
        (
            {**PACKED, "model_type": "mixtral"},
            r"its weights are quantized \(mxfp4\), and only weights in FP32",
        ),
    ],
)
def test_another_packing_or_that_of_another_family_is_refused(
    packed: Path, config: dict[str, Any], words: str
) -> None:
    settings = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(settings | config))

    with pytest.raises(PreflightError, match=words):
        inspect_base(make_recipe(packed))


def test_packed_weights_are_loaded_through_the_base_alone(packed: Path) -> None:
    with pytest.raises(PreflightError, match=r"quantized \(mxfp4\), which is undone for base\.model and"):
        load_model(packed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors, name: tensors.pop(f"{name}_scales"), r"gate_up_proj_scales is missing, fetch"),
        (
            lambda tensors, name: tensors.update({f"{name}_scales": tensors[f"{name}_scales"][:, 1:]}),
            r"U8 \[4, 128, 1, 16\] with scales U8 \[4, 127, 1\], not bytes of 16",
        ),
        (
            lambda tensors, name: [tensors.pop(f"{name}_{part}") for part in ("blocks", "scales")],
            r"1 missing, the first model\.layers\.1\.mlp\.experts\.gate_up_proj",
        ),
    ],
)
def test_a_stack_without_its_scales_or_blocks_is_refused_by_name(
    packed: Path, change: Any, words: str
) -> None:
    tensors = load_file(packed / ALONE)
    change(tensors, "model.layers.1.mlp.experts.gate_up_proj")
    save_file({name: each.contiguous() for name, each in tensors.items()}, packed / ALONE, {"format": "pt"})

    with pytest.raises(IntegrityError, match=words):
        check_fit(packed)
