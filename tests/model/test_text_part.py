"""The text model of a model of text and images: read, trained and exported as a text model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from anadil.artifacts.base_model import model_config
from anadil.core.errors import AnadilError
from anadil.estimate.model_shape import base_shape, shape_from
from anadil.model.load import load_model
from anadil.preflight.base_model import inspect_base
from anadil.pretrain.checkpoint.hf_export import export_checkpoints
from anadil.recipe.sections import Recipe
from tests.kit import families as kit
from tests.kit.harness import again
from tests.kit.marks import slow
from tests.kit.pretraining import make_tokenizer
from tests.kit.ranks import in_ranks
from tests.pretrain.checkpoint.test_hf_export import trained
from tests.pretrain.parallel.test_families import ROUNDING, processes_of, trains_as_transformers

WEIGHTS, IDS, KINDS = "model.safetensors", torch.arange(3, 40)[None], sorted(kit.WRAPPERS)
NAMES = ("language_model.model.", "model.language_model.")


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_tensor(model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits)


def change(folder: Path, names: tuple[str, str] = ("", ""), **config: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name.replace(*names): each for name, each in tensors.items()}, folder / WEIGHTS)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **config}))


@pytest.mark.parametrize(
    ("kind", "names"),
    [*((kind, ("", "")) for kind in KINDS), ("gemma3", NAMES), ("gemma4", NAMES[::-1]), ("mistral3", NAMES)],
)
def test_a_wrapper_gives_its_text_models_logits_and_is_saved_as_one(
    tmp_path: Path, kind: str, names: tuple[str, str], caplog: Any, capfd: Any
) -> None:
    expected = logits_of(kit.make_wrapper(tmp_path / "base", kind))
    change(tmp_path / "base", names)

    model: Any = load_model(tmp_path / "base")
    model.save_pretrained(tmp_path / "saved")

    assert torch.allclose(logits_of(model), expected, atol=ROUNDING)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits_of(saved), logits_of(model))
    assert saved.config.architectures == [type(model).__name__]
    assert f"of {kind} the text model is read, a {kit.WRAPPERS[kind][0]}. " in caplog.text
    assert "UNEXPECTED" not in capfd.readouterr().err


@pytest.mark.parametrize("layout", ["shard", slow("alone")])
def test_a_wrapper_trains_as_transformers(tmp_path: Path, layout: Any) -> None:
    kit.make_vocabulary(tmp_path / "tokenizer")

    in_ranks(trains_as_transformers, processes_of(layout), str(tmp_path), layout, KINDS)


@pytest.mark.parametrize("kind", [slow(kind) for kind in KINDS])
def test_a_checkpoint_on_a_wrapper_is_exported_as_a_text_model(tmp_path: Path, kind: Any) -> None:
    base = kit.make_family(tmp_path / "base", kind)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 320)

    export_checkpoints([trained(base, tmp_path)], base, tokenizer, tmp_path / "out")

    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    expected = torch.load(tmp_path / "parameters.pt", weights_only=True)
    assert all(torch.equal(each, expected[name]) for name, each in model.named_parameters())


MOE = {"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 128}


@pytest.mark.parametrize(
    ("names", "config", "message"),
    [
        (("language_model", "x"), {}, r"holds no tensors of the text model \(language_model\.model\., .* gemma3 has"),
        (("norm.weight", "norm.w"), {}, r"weights do not fit config.json .*missing, the first model\.layers\.0"),
        (("", ""), {"text_config": None}, r"config\.json: 'gemma3' is a model of text and images, and text_config"),
        (("", ""), {"text_config": {"model_type": "bloom"}}, "'bloom' is not proven to train"),
        (("", ""), {"text_config": MOE}, "'gemma4_text' is a mixture of experts"),
        (("", ""), {"text_config": {"model_type": "gemma4_text"}}, r"extend would leave rows .*\(hidden_size_per_layer_in"),
        (("", ""), {"quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
        (("", ""), {"model_type": "llava"}, "model type 'llava' is not proven to train"),
    ],
)  # fmt: skip
def test_a_wrapper_that_cannot_be_trained_is_refused_by_doctor_and_plan_alike(
    tmp_path: Path, recipe: Recipe, names: tuple[str, str], config: dict[str, Any], message: str
) -> None:
    kit.make_wrapper(tmp_path / "base", "gemma3")
    make_tokenizer(tmp_path / "base", 300)
    change(tmp_path / "base", names, **config)
    changed = again(recipe, f"base.model={tmp_path / 'base'}", "tokenizer.strategies=[extend]")

    for check in (inspect_base, base_shape) if config else (inspect_base,):
        with pytest.raises(AnadilError, match=message):
            check(changed)


def test_what_the_whole_model_says_of_its_text_is_taken_over(tmp_path: Path) -> None:
    # As published: what its type's defaults say is left out.
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2_560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
    }
    whole = {"eos_token_id": [1, 106], "torch_dtype": "bfloat16", "tie_word_embeddings": False}
    config = {"model_type": "gemma3", "image_token_id": 262_144, "text_config": text, **whole}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert model_config(tmp_path) == {**text, **whole}
    shape = shape_from(model_config(tmp_path), "gemma-3-4b")
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocabulary) == (8, 4, 256, 262_208)
