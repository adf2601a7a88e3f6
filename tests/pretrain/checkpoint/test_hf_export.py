"""A checkpoint becomes a Hugging Face directory without the nodes that wrote it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.model.family_table import model_types
from anadil.model.load import load_model, load_tokenizer
from anadil.model.process_group import Group
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from anadil.pretrain.checkpoint.hf_export import clean_generation_settings, export_checkpoints
from anadil.pretrain.state import State
from tests.kit.families import make_family
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import make_model, make_tokenizer


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_model(tmp_path / "base")


@pytest.fixture
def generation(base: Path, tmp_path: Path) -> Path:
    return trained(base, tmp_path)


def trained(base: Path, tmp_path: Path) -> Path:
    """A checkpoint of the base after training: a larger vocabulary, other weights, moments."""
    model = load_model(base)
    model.resize_token_embeddings(320)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    moments = {f"exp_avg {name}": torch.ones_like(parameter) for name, parameter in parameters.items()}
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", Group(), {}, 1)
    checkpoints.save(State(step=7, tokens=9, seconds=1.0), {**parameters, **moments})
    checkpoints.close()
    torch.save(parameters, tmp_path / "parameters.pt")
    return tmp_path / "checkpoints/step-00000007"


@pytest.mark.parametrize("tied", [True, False])
def test_an_exported_checkpoint_is_the_model_that_was_trained(tmp_path: Path, tied: bool) -> None:
    base = make_model(tmp_path / "base", tied=tied)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 320)

    figures = export_checkpoints([trained(base, tmp_path)], base, tokenizer, tmp_path / "out")

    model = load_model(tmp_path / "out")
    wanted = torch.load(tmp_path / "parameters.pt", weights_only=True)
    assert {name: parameter.shape for name, parameter in model.named_parameters()} == {
        name: tensor.shape for name, tensor in wanted.items()
    }
    assert all(torch.equal(parameter, wanted[name]) for name, parameter in model.named_parameters())
    assert len(load_tokenizer(tmp_path / "out")) == 320
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["vocab_size"], config["dtype"], config["use_cache"]) == (320, "float32", True)
    # Spellings that transformers 4 and llama.cpp read.
    assert (config["torch_dtype"], config["rope_theta"], config["rope_scaling"]) == (
        "float32",
        10_000.0,
        None,
    )
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text())["model_max_length"] == 256
    assert figures == {
        "step": 7, "tensors": len(wanted), "bytes": sum(tensor.nbytes for tensor in wanted.values()), "files": 1
    }  # fmt: skip


def test_a_large_model_is_cut_into_files(generation: Path, base: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 320)

    figures = export_checkpoints(
        [generation], base, tokenizer, tmp_path / "out", dtype=torch.bfloat16, shard_bytes=25_000
    )

    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.bfloat16, local_files_only=True
    )
    wanted = torch.load(tmp_path / "parameters.pt", weights_only=True)
    assert all(
        torch.equal(parameter, wanted[name].bfloat16()) for name, parameter in model.named_parameters()
    )
    assert figures["files"] == len(list((tmp_path / "out").glob("model-*.safetensors"))) >= 2
    assert all(file.stat().st_size < 27_000 for file in (tmp_path / "out").glob("model-*.safetensors"))


def test_a_damaged_checkpoint_is_not_exported(generation: Path, base: Path, tmp_path: Path) -> None:
    file = generation / "__0_0.distcp"
    file.write_bytes(file.read_bytes().replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x40", 1))

    with pytest.raises(IntegrityError, match=r"__0_0\.distcp: differs from its manifest"):
        export_checkpoints([generation], base, base, tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "step", "error", "words"),
    [
        ({}, "", DataError, r"no finished checkpoint there .* give a step-N directory"),
        ({"hidden_size": 64}, "step-00000007", DataError, "hidden size 64, and the checkpoint has 32"),
        (
            {"model_type": "phimoe", "num_local_experts": 8},
            "step-00000007",
            PreflightError,
            "'phimoe' is a mixture of experts",
        ),
    ],
)
def test_a_place_without_a_checkpoint_and_another_base_model_are_refused(
    generation: Path, base: Path, tmp_path: Path, changes: dict[str, Any], step: str, error: Any, words: str
) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **changes}))

    with pytest.raises(error, match=words):
        export_checkpoints([generation.parent / step], base, base, tmp_path / "out")


USUAL = ("gemma3_text", "gpt_neox", "phi3")
"""Types that differ most from a Llama, which the tests above export."""
UNLIKE = ("bitnet", "lfm2", "olmo2", "qwen3_5_text")
"""Types with layers of another kind or order; all others are built of a Llama's."""


@pytest.mark.parametrize(
    "kind",
    [kind if kind in USUAL else slow(kind) if kind in UNLIKE else matrix(kind) for kind in model_types()],
)
def test_a_checkpoint_of_each_type_becomes_a_model_of_that_type(tmp_path: Path, kind: str) -> None:
    base = make_family(tmp_path / "base", kind)
    generation = trained(base, tmp_path)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 320)

    figures = export_checkpoints([generation], base, tokenizer, tmp_path / "out", shard_bytes=50_000)

    expected, found = load_model(base), load_model(tmp_path / "out")
    expected.resize_token_embeddings(320)
    expected.load_state_dict(torch.load(tmp_path / "parameters.pt", weights_only=True), strict=False)
    ids = torch.arange(64)[None] * 5
    assert torch.equal(found(input_ids=ids).logits, expected(input_ids=ids).logits)
    before, after = (json.loads((path / "config.json").read_text()) for path in (base, tmp_path / "out"))
    assert after["architectures"] == before["architectures"] == [type(found).__name__]
    assert after["model_type"] == kind
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == figures["tensors"]
    assert after["tie_word_embeddings"] == before["tie_word_embeddings"]
    assert set(index["weight_map"]) == set(SafetensorsFiles(base)), (
        "names of files, which older versions read"
    )


def test_a_base_that_names_no_architecture_gets_that_of_the_model(
    generation: Path, base: Path, tmp_path: Path
) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "architectures": None}))

    export_checkpoints([generation], base, make_tokenizer(tmp_path / "tokenizer", 320), tmp_path / "out")

    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


SETTINGS = {
    "do_sample": True,
    "temperature": 0.6,
    "eos_token_id": [4],
    "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [2],
    "bad_words_ids": [[1, 3], [2], [1]],
    "force_words_ids": [[[1], [2]]],
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 2,
    "forced_decoder_ids": [[1, 3], [2, 2]],
    "sequence_bias": [[[3], -5.0], [[2, 3], 1.5]],
}
ROWS = [[0], [1], [0, 3], [3], [5]]
"""Token 2 of the base is gone: what has its id is made of two others."""


def put(folder: Path, rows: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps(SETTINGS))
    (folder / "embedding_map.json").write_text(json.dumps({"strategy": "replace", "rows": rows}))


def test_ids_that_other_tokens_have_now_go_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, ROWS)

    clean_generation_settings(tmp_path, tmp_path)

    assert json.loads((tmp_path / "generation_config.json").read_text()) == {
        "do_sample": True,
        "temperature": 0.6,
        "eos_token_id": [4],
        "suppress_tokens": [1],
        "bad_words_ids": [[1, 3], [1]],
        "forced_bos_token_id": 3,
        "forced_decoder_ids": [[1, 3]],
        "sequence_bias": [[[3], -5.0]],
    }
    assert "bad_words_ids, begin_suppress_tokens, force_words_ids, forced_decoder_ids" in caplog.text


def test_settings_of_a_vocabulary_that_stayed_are_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, None)
    caplog.set_level("INFO")

    clean_generation_settings(tmp_path, tmp_path)

    assert json.loads((tmp_path / "generation_config.json").read_text()) == SETTINGS
    assert caplog.messages == [
        "generation_config.json: the base's sampling is kept: do_sample True, temperature 0.6"
    ]
