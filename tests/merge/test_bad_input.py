"""Models that cannot be merged are refused before anything is written, with what, where, the value and the remedy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError
from anadil.merge.weights import Ends
from tests.kit.families import make_family
from tests.kit.merging import Models, changed, make_models, put, tensors_of
from tests.kit.pretraining import SPECIALS, make_tokenizer

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Models that fit together; not to be changed."""
    return make_models(tmp_path_factory.mktemp("sound"), "extend")


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change tensors of a directory."""
    tensors = tensors_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def set_number(name: str, value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[7].fill_(value)


def opened(sound: Models, model: Path, minus: Path) -> Ends:
    return Ends.open(sound.model, sound.base, sound.tokenizer, add=[(model, minus)])


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llama", {"hidden_size": 64}, r"embed_tokens.weight has \[64\] columns, and \[32\] in the base"),
        (
            "llama",
            {"intermediate_size": 48},
            r"mlp.down_proj.weight has \[32, 48\], and \[32, 64\] in the base",
        ),
        ("llama", {"num_hidden_layers": 2}, r"18 tensors are not in both; it lacks model.layers.2"),
        ("llama", {"num_attention_heads": 2, "head_dim": 16}, r"num_attention_heads is 2, and 4 in the base"),
        ("llama", {"tie_word_embeddings": False}, r"tables are not tied, and tied in the base"),
        ("qwen3", {}, r"model_type is 'qwen3', and 'llama' in the base"),
    ],
)
def test_a_model_of_another_shape_or_family_is_refused(
    sound: Models, tmp_path: Path, kind: str, changes: dict[str, object], words: str
) -> None:
    model = make_family(tmp_path / "model", kind, **{"tie_word_embeddings": True, **changes})
    put(sound.base.parent / "plain", model)

    with pytest.raises(
        DataError, match=rf"merge.add.0.model: {model} is another model than base.model .*{words}"
    ):
        opened(sound, model, sound.base)


def test_a_minus_that_is_not_the_base_of_its_model_is_refused_with_their_difference(
    sound: Models, tmp_path: Path
) -> None:
    model = changed(sound.base, tmp_path / "model", 5, scale=0.14)

    with pytest.raises(
        DataError, match=r"merge.add.0.minus: .* is not the model that .* trained from: .* by 1\.\d\d of"
    ):
        opened(sound, model, sound.base)


def test_a_vector_whose_ends_are_swapped_or_one_is_refused(sound: Models, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(sound.instruct)

    with pytest.raises(DataError, match=r"merge.add.0.model: .* is base.model, .*; swap model and minus"):
        opened(sound, sound.base, sound.instruct)
    with pytest.raises(DataError, match=r"is the directory of merge.add.0.minus, too, .* is nothing"):
        opened(sound, sound.instruct, link)


def test_a_model_that_computes_otherwise_than_its_minus_is_a_warning(
    sound: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu", "rms_norm_eps": 0.01}))

    opened(sound, sound.instruct, sound.base)
    assert "the merged model may answer worse" not in caplog.text

    opened(sound, model, sound.base)
    assert "merge.add.0.model: hidden_act is 'gelu', and 'silu' in merge.add.0.minus" in caplog.text
    assert "rms_norm_eps is 0.01" in caplog.text


def test_a_minus_that_has_nothing_to_do_with_the_base_is_refused(sound: Models, tmp_path: Path) -> None:
    # It is the base of `model`, and another one than that of the trained model.
    minus = changed(sound.base, tmp_path / "minus", 5, scale=0.14)
    model = changed(minus, tmp_path / "model", 6)

    with pytest.raises(
        DataError, match=r"merge.add.0.minus: .* has nothing to do with base.model .* by 1\.\d\d"
    ):
        opened(sound, model, minus)


def test_a_model_with_another_tokenizer_is_refused_and_one_with_more_tokens_is_not(
    sound: Models, tmp_path: Path
) -> None:
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (next(token for token, place in vocabulary.items() if place == at) for at in (270, 271))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))

    with pytest.raises(
        DataError, match=r"another vocabulary than base.model .* 2 of \d+ tokens differ, the first is 270"
    ):
        opened(sound, model, sound.base)

    more = shutil.copytree(sound.instruct, tmp_path / "more")
    config = json.loads((more / "config.json").read_text())
    (more / "config.json").write_text(json.dumps({**config, "vocab_size": 308}))
    rewritten(more, lambda tensors: tensors.update({
        "model.embed_tokens.weight": torch.cat([tensors["model.embed_tokens.weight"], torch.ones(8, 32)])
    }))  # fmt: skip
    plain, wider = opened(sound, sound.instruct, sound.base), opened(sound, more, sound.base)
    name = "model.embed_tokens.weight"
    assert torch.equal(plain.tensor(name, 0.0, [1.0]), wider.tensor(name, 0.0, [1.0]))


def test_a_chat_format_whose_tokens_the_tokenizer_lacks_is_refused_with_their_names(
    sound: Models, tmp_path: Path
) -> None:
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    template = (model / "chat_template.jinja").read_text()
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|turn|>"])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "chat_template.jinja").write_text(template.replace("<|im_end|>", "<|turn|>"))

    with pytest.raises(DataError, match=r"writes <\|turn\|>, which the tokenizer of the trained model lacks"):
        opened(sound, model, sound.base)

    (model / "chat_template.jinja").write_text(template + "{% if tools %}<|turn|>{% endif %}")
    chat = opened(sound, model, sound.base).vectors[0].chat
    assert chat is not None
    assert chat.absent == ("<|turn|>",)


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda tensors: tensors.pop(UP), IntegrityError, rf"1 missing, the first {UP}"),
        (lambda tensors: tensors.update({UP: tensors[UP].to(torch.float8_e4m3fn)}), IntegrityError,
         rf"1 not in FP32, BF16 or FP16, the first {UP}"),
        (lambda tensors: tensors.update({UP: tensors[UP].to(torch.uint8)}), IntegrityError, "not in FP32"),
        (set_number(UP, float("nan")), IntegrityError, rf"{UP} holds NaN or Inf"),
    ],
)  # fmt: skip
def test_missing_tensors_weights_of_few_bits_and_nan_are_refused_when_they_are_opened(
    sound: Models, tmp_path: Path, damage: Callable[..., object], error: type[AnadilError], words: str
) -> None:
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    rewritten(model, damage)

    with pytest.raises(error, match=words):
        opened(sound, model, sound.base)


def test_quantized_weights_are_refused_by_their_config(sound: Models, tmp_path: Path) -> None:
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (model / "config.json").write_text(json.dumps(config))

    with pytest.raises(PreflightError, match=r"weights are quantized \(fp8\)"):
        opened(sound, model, sound.base)


def test_nan_behind_the_sample_ends_the_writing_and_names_the_model(sound: Models, tmp_path: Path) -> None:
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    rewritten(model, set_number("model.embed_tokens.weight", float("inf")))
    ends = opened(sound, model, sound.base)

    with pytest.raises(IntegrityError, match=rf"{model}: model.embed_tokens.weight holds NaN or Inf"):
        ends.write(tmp_path / "out", 0.0, [1.0])


def test_a_sum_that_fp16_cannot_hold_is_refused(sound: Models, tmp_path: Path) -> None:
    half = shutil.copytree(sound.model, tmp_path / "half")
    rewritten(half, lambda tensors: tensors.update({name: each.half() for name, each in tensors.items()}))
    rewritten(half, set_number(UP, 60_000.0))
    model = shutil.copytree(sound.instruct, tmp_path / "model")
    rewritten(model, set_number("model.norm.weight", 60_000.0))
    rewritten(half, set_number("model.norm.weight", 60_000.0))
    ends = Ends.open(half, sound.base, sound.tokenizer, add=[(model, sound.base)])

    with pytest.raises(IntegrityError, match=r"model.norm.weight holds NaN or Inf"):
        ends.write(tmp_path / "out", 0.0, [1.0])


def test_a_tokenizer_that_the_model_was_not_trained_with_is_refused(sound: Models, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 300, SPECIALS)
    (tokenizer / "embedding_map.json").write_text(json.dumps({"rows": None}))

    with pytest.raises(
        DataError, match=r"has 326 embedding rows, and the map of .* makes 300; give the tokenizer"
    ):
        Ends.open(sound.model, sound.base, tokenizer)
