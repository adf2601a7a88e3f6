"""The text model of a model of text and images: read, trained and exported as a text model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from anadil.artifacts.base_model import model_config
from anadil.artifacts.text_part import WRAPPERS
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError
from anadil.estimate.model_shape import base_shape, shape_from
from anadil.model.architecture import check_fit
from anadil.model.load import load_model, save_model
from anadil.preflight.base_model import inspect_base
from anadil.pretrain.checkpoint.hf_export import export_checkpoints
from anadil.recipe.sections import Recipe
from tests.kit import families as kit
from tests.kit.harness import again
from tests.kit.marks import slow
from tests.kit.pretraining import make_tokenizer
from tests.kit.ranks import in_ranks
from tests.kit.transformers_4 import python_with_4, read_by_4
from tests.pretrain.checkpoint.test_hf_export import trained
from tests.pretrain.parallel.test_families import EXPECTED, ROUNDING

WEIGHTS = "model.safetensors"
IDS = torch.arange(3, 40)[None]
KINDS = sorted(kit.WRAPPERS)


def rename(folder: Path, *names: tuple[str, str]) -> None:
    tensors = load_file(folder / WEIGHTS)
    for old, new in names:
        tensors = {name.replace(old, new): each for name, each in tensors.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
    return found


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_model_of_a_wrapper_gives_its_logits_and_is_saved_as_a_text_model(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = logits_of(kit.make_wrapper(tmp_path / "base", kind))
    text, _ = kit.WRAPPERS[kind]

    model: Any = load_model(tmp_path / "base")
    save_model(model, make_tokenizer(tmp_path / "tokenizer", 300), tmp_path / "saved", torch.float32)

    assert torch.allclose(logits_of(model), wanted, atol=ROUNDING)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits_of(saved), logits_of(model))
    config = json.loads((tmp_path / "saved/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (text, [type(model).__name__])
    assert f"of {kind} the text model is read, a {text}" in caplog.text
    assert "tensors of its other parts are not, the first" in caplog.text
    assert "UNEXPECTED" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("gemma3", [("language_model.model.", "model.language_model.")]),
        ("gemma4", [("model.language_model.", "language_model.model.")]),
        ("mistral3", [("language_model.model.", "model.language_model."), ("language_model.lm_head", "lm_head")]),
    ],
)  # fmt: skip
def test_names_of_both_versions_are_read(tmp_path: Path, kind: str, names: list[tuple[str, str]]) -> None:
    wanted = logits_of(kit.make_wrapper(tmp_path, kind))
    rename(tmp_path, *names)

    assert torch.allclose(logits_of(load_model(tmp_path)), wanted, atol=ROUNDING)


def trains_as_its_text_model(rank: int, work: str, layout: str, kinds: list[str]) -> None:
    degrees = {} if layout == "alone" else {layout: 2}
    given = kit.batches(2)
    for kind in kinds:
        expected, gradients = torch.load(Path(work, kind, EXPECTED))
        loss, mine = kit.by_layout(
            Path(work, kind, "base"), Path(work, "tokenizer"), degrees, rank, 1 + bool(degrees), given
        )
        assert loss == pytest.approx(expected, rel=ROUNDING), kind
        for name, each in mine.items():
            assert (each - gradients[name]).norm() <= ROUNDING * gradients[name].norm(), f"{kind} {name}"


@pytest.mark.parametrize("layout", ["shard", slow("alone")])
def test_a_wrapper_trains_as_its_text_model(tmp_path: Path, layout: Any) -> None:
    kit.make_vocabulary(tmp_path / "tokenizer")
    for kind in KINDS:
        wrapper = kit.make_wrapper(tmp_path / kind / "base", kind)
        config = wrapper.config.text_config
        config.tie_word_embeddings = wrapper.config.tie_word_embeddings
        text: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        text.model.load_state_dict(wrapper.model.language_model.state_dict())
        text.lm_head.load_state_dict(wrapper.lm_head.state_dict())
        text.save_pretrained(tmp_path / kind / "text")
        found = kit.by_transformers(tmp_path / kind / "text", tmp_path / "tokenizer", kit.batches(2))
        torch.save(found, tmp_path / kind / EXPECTED)

    in_ranks(trains_as_its_text_model, 1 if layout == "alone" else 2, str(tmp_path), layout, KINDS)


@pytest.mark.parametrize("kind", [KINDS[0], *(slow(kind) for kind in KINDS[1:])])
def test_a_checkpoint_on_a_wrapper_is_exported_as_a_text_model(tmp_path: Path, kind: Any) -> None:
    kit.make_wrapper(tmp_path / "base", kind)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 320)

    export_checkpoints([trained(tmp_path / "base", tmp_path)], tmp_path / "base", tokenizer, tmp_path / "out")

    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    wanted = torch.load(tmp_path / "parameters.pt", weights_only=True)
    assert all(torch.equal(parameter, wanted[name]) for name, parameter in model.named_parameters())
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [type(model).__name__]
    assert "vision_config" not in config


@pytest.mark.slow
def test_transformers_4_reads_what_was_exported_of_a_wrapper(tmp_path: Path) -> None:
    made = []
    for kind in ("gemma3", "mistral3"):
        (tmp_path / kind).mkdir()
        kit.make_wrapper(tmp_path / kind / "base", kind)
        checkpoint = trained(tmp_path / kind / "base", tmp_path / kind)
        tokenizer = make_tokenizer(tmp_path / kind / "tokenizer", 320)
        export_checkpoints([checkpoint], tmp_path / kind / "base", tokenizer, tmp_path / kind / "out")
        made.append(tmp_path / kind / "out")

    read_by_4(python_with_4(), made, IDS, tmp_path)


def no_text(folder: Path) -> None:
    rename(folder, ("language_model", "language"))


def twice(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "language_model.model.norm.weight"
    tensors["model.language_model.norm.weight"] = tensors[name].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda each: change_config(each, text_config=None), DataError, r"config\.json: 'gemma3' is a model of text and im"),
        (no_text, IntegrityError, r"base: holds no tensors of the text model \(language_model\.model\., .*, which gemma3 has"),
        (twice, IntegrityError, r"norm\.weight and .*norm\.weight are one tensor, remove one"),
        (lambda each: change_config(each, text_config={"model_type": "bloom"}), PreflightError, "'bloom' is not proven to tr"),
        (lambda each: change_config(each, quantization_config={"quant_method": "fp8"}), PreflightError, r"quantized \(fp8\)"),
        (lambda each: change_config(each, model_type="llava"), PreflightError, "model type 'llava' is not proven to train"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("here", [True, False])
def test_a_wrapper_that_cannot_be_trained_is_refused_by_name(
    tmp_path: Path, recipe: Recipe, change: Any, kind: type[AnadilError], message: str, here: bool
) -> None:
    base = tmp_path / "base"
    kit.make_wrapper(base, "gemma3")
    make_tokenizer(base, 300)
    change(base)

    with pytest.raises(kind, match=message):
        inspect_base(again(recipe, f"base.model={base}"), here=here)


GEMMA_4 = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "vocab_size": 300}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({}, r"tokenizer\.strategies: extend would leave rows of base\.model behind.*\(hidden_size_per_layer_input\)"),
        ({"enable_moe_block": True, "num_experts": 128}, "'gemma4_text' is a mixture of experts"),
    ],
)  # fmt: skip
def test_tables_that_no_vocabulary_changes_and_experts_are_refused_by_doctor_and_plan_alike(
    tmp_path: Path, recipe: Recipe, text: dict[str, Any], message: str
) -> None:
    config = {**GEMMA_4, "text_config": {**GEMMA_4["text_config"], **text}}  # type: ignore[dict-item]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / WEIGHTS).write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    changed = again(recipe, f"base.model={tmp_path}", "tokenizer.strategies=[extend]")

    for check in (inspect_base, base_shape):
        with pytest.raises(PreflightError, match=message):
            check(changed)


def test_what_the_whole_model_says_of_its_text_is_taken_over(tmp_path: Path) -> None:
    whole = {
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "image_token_id": 262_144,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2_560, "intermediate_size": 10_240, "num_hidden_layers": 34},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(whole))

    config = model_config(tmp_path)

    taken = {key: whole[key] for key in ("eos_token_id", "torch_dtype", "tie_word_embeddings")}
    assert config == {**whole["text_config"], **taken}  # type: ignore[dict-item]
    # As published: what its type's defaults say is left out.
    shape = shape_from(config, "gemma-3-4b")
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocabulary) == (8, 4, 256, 262_208)


def test_every_wrapper_is_tested() -> None:
    assert {*KINDS} == WRAPPERS


def test_a_base_without_weights_of_its_other_parts_passes(tmp_path: Path) -> None:
    kit.make_wrapper(tmp_path, "mistral3")
    tensors = load_file(tmp_path / WEIGHTS)
    save_file({name: each for name, each in tensors.items() if name.startswith("lang")}, tmp_path / WEIGHTS)

    check_fit(tmp_path)
