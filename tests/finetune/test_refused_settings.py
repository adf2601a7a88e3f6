"""Settings that cannot be, or not here, are refused by name before anything is trained."""

from pathlib import Path

import pytest
import torch

from anadil.core.errors import PreflightError, RecipeError
from anadil.finetune.learning import nf4, refuse_quantization
from anadil.recipe.finetune import Finetune
from anadil.recipe.load import load_recipe
from tests.finetune.test_run import FOREIGN_WARNINGS, run_in

pytestmark = FOREIGN_WARNINGS


def test_four_bits_without_a_gpu_are_refused_before_chats_are_read(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.jsonl"

    with pytest.raises(
        PreflightError, match=r"4bit needs an NVIDIA GPU, .* or set finetune.quantization to none"
    ):
        run_in(tmp_path, model_dir, missing, tmp_path / "out", "finetune.quantization=4bit")

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        PreflightError, match=r"needs bitsandbytes, which is not installed; pip install 'anadil\["
    ):
        refuse_quantization(Finetune(quantization="4bit"), torch.device("cuda"))
    refuse_quantization(Finetune(), torch.device("cpu"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    refuse_quantization(Finetune(quantization="4bit"), torch.device("cuda"))


def test_four_bits_are_the_normal_float_of_qlora() -> None:
    settings = nf4(torch.bfloat16)

    assert settings.load_in_4bit
    assert settings.bnb_4bit_quant_type == "nf4"
    assert settings.bnb_4bit_use_double_quant
    assert settings.bnb_4bit_compute_dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["trains=all", "rslora=true"], "rslora True is for an adapter, and trains is 'all'"),
        (["trains=all", "dora=true"], "dora True is for an adapter, and trains is 'all'"),
        (["trains=all", "quantization=4bit"], "quantization '4bit' is for an adapter, and trains is 'all'"),
        (["trains=all", "trains_embeddings=control"], "trains_embeddings 'control' is for an adapter"),
        (["patience=2"], "patience 2 waits for the validation loss, and validation_fraction is 0"),
        (["heldout_fraction=0.6", "validation_fraction=0.4"], "take 1 of the chats together"),
        (["schedule=wsd"], "must be 'cosine', 'linear' or 'constant'"),
        (["neftune_alpha=0"], "must be above 0"),
        (["gradient_accumulation=0"], "must be above 0"),
        (["weight_decay=-1"], "must be at least 0"),
        (["warmup_fraction=1.5"], "must be at most 1"),
        (["validation_fraction=1"], "must be below 1"),
        (["quantization=8bit"], "must be 'none' or '4bit'"),
        (["trains=embeddings"], "must be 'adapter' or 'all'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(keys: list[str], words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        load_recipe("smoke", ["finetune.trains=adapter", *(f"finetune.{key}" for key in keys)])

    assert words in str(raised.value)
