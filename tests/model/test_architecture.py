"""A directory's model before its weights are read, and whether they fit it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, LlamaForCausalLM

from anadil.artifacts import storage
from anadil.artifacts.base_model import base_tokenizer
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.estimate.model_shape import shape_from
from anadil.model.architecture import check_fit, empty_model, read_config
from anadil.model.chat_template import end_ids
from anadil.model.families import FAMILIES
from anadil.model.family import TENSOR_LAYOUTS, Architecture, Family
from anadil.model.family_table import LAYOUTS, check_family, families, model_types
from anadil.model.load import (
    document_frame,
    document_ids,
    encode_text,
    encode_texts,
    load_model,
    load_tokenizer,
    pick_dtype,
    save_model,
    version_4_keys,
    window_bos,
    write_both_spellings,
)
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.parallel.parallelize import load_weights
from anadil.recipe.sections import Base
from tests.kit.families import make_family
from tests.kit.llama import small_llama
from tests.kit.pretraining import SPECIALS, make_model, set_bos

Tensors = dict[str, torch.Tensor]


def change(folder: Path, change_tensors: Callable[[Tensors], object] = len, **config: Any) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change_tensors(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **config}))
    return folder


@pytest.mark.parametrize("kind", model_types())
def test_the_files_of_every_type_fit_its_config(tmp_path: Path, kind: str) -> None:
    check_fit(make_family(tmp_path, kind))


def test_a_head_of_its_own_is_kept_where_config_calls_it_tied(tmp_path: Path) -> None:
    base = change(make_model(tmp_path / "base", tied=False), tie_word_embeddings=True)
    head = load_file(base / "model.safetensors")["lm_head.weight"]

    model: Any = load_model(base)
    sharded: Any = empty_model(base)
    load_weights(sharded, SafetensorsFiles(base), torch.device("cpu"))
    save_model(model, base, tmp_path / "saved", torch.float32)

    for each in (model, sharded, load_model(tmp_path / "saved")):
        assert torch.equal(each.lm_head.weight, head)
        assert not each.config.tie_word_embeddings
    assert json.loads((tmp_path / "saved/config.json").read_text())["tie_word_embeddings"] is False


def test_a_head_that_is_saved_beside_an_equal_embedding_stays_tied(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    change(base, lambda each: each.update({"lm_head.weight": each["model.embed_tokens.weight"].clone()}))

    model: Any = load_model(base)

    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert read_config(base).tie_word_embeddings


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tie_word_embeddings": False}, r"1 missing, the first lm_head\.weight"),
        ({"num_hidden_layers": 1}, r"9 config.json asks for none, the first model\.layers\.1\."),
        ({"intermediate_size": 32}, r"6 of another shape, the first model\.layers\.0\.mlp\.down_proj"),
    ],
)
def test_tensors_other_than_those_of_config_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    base = change(make_model(tmp_path / "base"), **config)

    with pytest.raises(IntegrityError, match=message):
        load_model(base)


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "score.weight"]
)
def test_tensors_that_config_does_not_ask_for_are_refused_by_name(tmp_path: Path, name: str) -> None:
    base = change(make_model(tmp_path / "base"), lambda each: each.update({name: torch.ones(4)}))

    with pytest.raises(IntegrityError, match=rf"1 config.json asks for none, the first {name}"):
        check_fit(base)


def test_frequencies_that_are_computed_anyway_and_other_files_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    base = make_model(tmp_path / "base")
    change(base, lambda each: each.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    save_file({"a": torch.ones(1)}, base / "consolidated.safetensors")

    load_model(base)

    assert "1 tensors are not read, the first model.layers.0.self_attn.rotary_emb.inv_freq" in caplog.text
    assert "not part of the model and not read: consolidated.safetensors" in caplog.text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path, number: float, name: str) -> None:
    base = change(make_model(tmp_path / "base"), lambda each: each[name].view(-1)[5:6].fill_(number))

    with pytest.raises(IntegrityError, match=rf"{name} holds NaN or Inf"):
        load_model(base)
    with pytest.raises(IntegrityError, match=rf"{name} holds NaN or Inf"):
        load_weights(empty_model(base), SafetensorsFiles(base), torch.device("cpu"))


def test_an_attention_of_config_json_is_not_taken(tmp_path: Path) -> None:
    base = change(make_model(tmp_path / "base"), attn_implementation="flash_attention_2")

    assert load_model(base).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_of_fewer_bits_are_refused_though_config_says_nothing_of_them(
    tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    base = make_model(tmp_path / "base")
    head = load_file(base / "model.safetensors")["model.embed_tokens.weight"].clone()
    change(base, lambda each: each.setdefault("lm_head.weight", head), tie_word_embeddings=False)
    change(base, lambda each: each.update({name: each[name].to(dtype)}))

    with pytest.raises(IntegrityError, match=rf"1 not in FP32, BF16 or FP16, the first {name}"):
        load_model(base)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_in_other_floats_are_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    base = make_model(tmp_path / "base")

    check_fit(change(base, lambda each: each.update({name: value.to(dtype) for name, value in each.items()})))


def test_an_index_that_leaves_tensors_out_is_refused(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    places = dict.fromkeys(load_file(base / "model.safetensors"), "model.safetensors")
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    check_fit(base)
    del places["model.norm.weight"]
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))

    with pytest.raises(IntegrityError, match=r"1 not named by model\.safetensors\.index\.json"):
        check_fit(base)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": method}}
        for method in ("bitsandbytes", "quanto", "gptq", "torchao", "nobody_knows")
    ]
    + [{"quantization_config": {"load_in_4bit": True}}, {"compression_config": {"quant_method": "x"}}],
)
def test_weights_that_config_calls_quantized_are_refused_before_any_package_is_asked(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    base = change(make_model(tmp_path / "base"), **config)

    for load in (read_config, check_fit, load_model):
        with pytest.raises(PreflightError, match=r"base: its weights are quantized \(.*take the model"):
            load(base)


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 9,
}


def test_one_record_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = Family(
        model_type="newer",
        layouts=TENSOR_LAYOUTS,
        architecture=Architecture(has_bias=True, bias="inputs", defaults={"head_dim": 64}),
    )
    monkeypatch.setitem(families(), "newer", newer)

    check_family({"model_type": "newer"}, {"shard": 2, "tensor": 2})
    with pytest.raises(PreflightError, match=r"pipeline: 2 is not proven .* 'newer'.*share"):
        check_family({"model_type": "newer"}, {"pipeline": 2})
    shape = shape_from({"model_type": "newer", **SIZES}, "newer")

    assert (shape.head_dim, shape.biases) == (64, 3 * 2 * 64)


def test_a_type_is_in_one_family() -> None:
    assert sorted(family.model_type for family in FAMILIES) == model_types()


def test_each_layout_of_a_family_is_one_that_shards_too() -> None:
    for family in families().values():
        assert family.layouts <= set(LAYOUTS)
        assert not family.layouts or "shard" in family.layouts, family.model_type


def test_the_table_is_read_without_torch() -> None:
    code = (
        "import sys; from anadil.model.family_table import families; families();"
        " sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LLAMA_3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
FACTORS = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}


GEMMA_3 = {
    "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
}
PLAIN = {"rope_theta": 1e4, "rope_type": "default"}
LONG = {"rope_type": "longrope", **FACTORS}
BEFORE = "original_max_position_embeddings"


@pytest.mark.parametrize(
    ("kind", "rotation", "expected"),
    [
        ("llama", {"rope_theta": 5e5, **LLAMA_3}, {"rope_theta": 5e5, "rope_scaling": LLAMA_3}),
        ("qwen3", PLAIN, {"rope_theta": 1e4, "rope_scaling": None}),
        (
            "gemma3_text",
            GEMMA_3,
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
        (
            "glm4",
            {**PLAIN, "partial_rotary_factor": 0.5},
            {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_scaling": None},
        ),
        (
            "gpt_neox",
            {**PLAIN, "partial_rotary_factor": 0.25},
            {"rotary_emb_base": 1e4, "rotary_pct": 0.25, "rope_scaling": None},
        ),
        (
            "phi3",
            {"rope_theta": 1e4, "partial_rotary_factor": 1.0, BEFORE: 4096, **LONG},
            {
                "rope_theta": 1e4,
                "partial_rotary_factor": 1.0,
                "rope_scaling": {"type": "longrope", **FACTORS},
            },
        ),
        (
            "llama",
            {"rope_theta": 1e4, BEFORE: 32, **LONG},
            {"rope_theta": 1e4, BEFORE: 32, "rope_scaling": {BEFORE: 32, **LONG}},
        ),
        ("gemma4_text", GEMMA_3, {}),
        ("unheard_of", None, {}),
    ],
)
def test_version_4_finds_precision_and_rotation_under_its_own_keys(
    kind: str, rotation: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    config = {"model_type": kind, "rope_parameters": rotation}

    assert version_4_keys(config) == expected
    assert version_4_keys({**config, "dtype": "bfloat16"}) == {**expected, "torch_dtype": "bfloat16"}


SCALED: dict[str, dict[str, Any]] = {
    "gemma3_text": {"rope_parameters": GEMMA_3},
    "llama": {"rope_parameters": {"rope_theta": 5e5, **LLAMA_3}},
    "phi3": {"hidden_size": 16, "num_attention_heads": 4, "rope_parameters": {"rope_theta": 1e4, **LONG}},
}


@pytest.mark.parametrize(("kind", "changes"), [*((kind, {}) for kind in model_types()), *SCALED.items()])
def test_version_5_reads_from_both_spellings_what_it_wrote(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(kind, dtype="bfloat16", architectures=["Kept"], **changes)
    config.save_pretrained(tmp_path)
    alone = AutoConfig.from_pretrained(tmp_path).to_dict()

    write_both_spellings(tmp_path / "config.json")

    read = AutoConfig.from_pretrained(tmp_path).to_dict()
    read["rope_parameters"].pop("type", None)  # Phi-3's, which stays beside `rope_type`
    alone["rope_parameters"].pop("type", None)  # Ministral 3 writes both itself
    assert {key: read[key] for key in alone} == alone
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["torch_dtype"] == written["dtype"] == "bfloat16"
    if families()[kind].version_4.is_known:
        assert {"rope_theta", "rotary_emb_base"} & set(written), "some key of version 4"
    assert written["architectures"] == ["Kept"]


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[0], "eos_token": SPECIALS[1],
        "model_max_length": 4,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "fertility.json").write_text("{}")
    return folder


def make(tied: bool = True) -> LlamaForCausalLM:
    return small_llama(vocab_size=259, num_hidden_layers=1, tie_word_embeddings=tied)


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_reloads_bit_equal_with_its_tie(
    tmp_path: Path, tokenizer_dir: Path, tied: bool
) -> None:
    model = make(tied)

    save_model(model, tokenizer_dir, tmp_path / "out", torch.float32)

    again = load_model(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    assert again.config.use_cache is False


def test_a_saved_model_has_what_others_need_and_no_more(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("is_torch_distributed_initialized", True), ("get_torch_distributed_rank", 1)):
        monkeypatch.setattr(f"transformers.distributed.mixin._{name}", lambda value=value: value)
    save_model(make(), tokenizer_dir, tmp_path / "out", torch.bfloat16)

    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["use_cache"] is True
    assert config["dtype"] == "bfloat16"
    ends = json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"]
    assert ends == [257, 258]


def test_control_text_is_encoded_as_letters_and_texts_without_bos(tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    text = "Sual <|eot_id|> cavab"

    ids, short = encode_texts(tokenizer, [text, "sağ ol"])

    assert max(ids) < 256
    assert tokenizer.decode(ids) == text
    assert 258 in tokenizer(text)["input_ids"]  # the trap, and the tokenizer is left as it was
    assert len(short) == 7


def test_documents_are_framed_by_bos_or_the_end_of_text_and_that(tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    change_settings(tokenizer_dir, bos_token=None)

    assert document_ids(tokenizer, "t") == (256, 257)
    assert end_ids(tokenizer) == [257, 258]
    assert document_ids(load_tokenizer(tokenizer_dir), "t") == (257, 257)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (
            {"num_hidden_layers": 10**9},
            r"asks for 1,000,000,000 layers \(num_hidden_layers\), and its files hold \d",
        ),
        ({"text_config": {"n_layer": 10**9}}, r"1,000,000,000 layers \(n_layer\)"),
        ({"num_hidden_layers": "2"}, "is .2., not a whole number above 0"),
        ({"intermediate_size": 10**18}, "cannot be made as a causal language model"),
        ({"vocab_size": 9}, r"vocab_size is 9, and model.embed_tokens.weight in .* has \d+ rows"),
    ],
)
def test_sizes_are_compared_with_the_files_before_anything_is_made_of_them(
    tmp_path: Path, settings: dict[str, object], fault: str
) -> None:
    base = make_family(tmp_path / "base", "llama")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **settings}))

    with pytest.raises((DataError, IntegrityError), match=fault):
        check_fit(base)


TURNS = "{% for m in messages %}<|user|>{{ m.content }}{% if m.role == 'assistant' %}<|turn|>{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "generation", "config", "ends"),
    [
        (TURNS, None, None, ["<|doc|>", "<|turn|>"]),
        (TURNS.replace("<|turn|>", ""), None, None, ["<|doc|>", "<|user|>"]),
        ("{{ raise_exception('no') }}", [256, 258], None, ["<|doc|>", "<|turn|>"]),
        ("", 256, [256, 258], ["<|doc|>", "<|turn|>"]),
        ("", [256, 35, 999, -1, "a"], None, ["<|doc|>"]),  # an ordinary token, and none
    ],
)
def test_texts_end_as_the_chat_template_and_the_files_of_a_model_say(
    tmp_path: Path, template: str, generation: object, config: object, ends: list[str]
) -> None:
    made = Tokenizer(models.BPE(vocab={chr(0x100 + i): i for i in range(256)}, merges=[]))
    special = [
        AddedToken(token, special=True, normalized=False) for token in ("<|doc|>", "<|user|>", "<|turn|>")
    ]
    made.add_special_tokens(special)
    made.save(str(tmp_path / "tokenizer.json"))
    named = {"eos_token": "<|doc|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    for name, content in {
        "tokenizer_config.json": named | ({"chat_template": template} if template else {}),
        "generation_config.json": {"eos_token_id": generation},
        "config.json": {"eos_token_id": config},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))

    found: Any = load_tokenizer(tmp_path)

    assert found.convert_ids_to_tokens(end_ids(found, tmp_path)) == ends


@pytest.mark.parametrize(
    ("tokens", "bos", "eos", "template", "frame"),
    [
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_start|>", "<|im_end|>", "", (256, 256)),
        (["<s>", "</s>", "<|end|>"], "<s>", "<|end|>", "", (256, 257)),
        (["<eos>", "<start_of_turn>", "<end_of_turn>"], "<start_of_turn>", "<end_of_turn>", "", (256, 256)),
        (["<|im_start|>", "<|im_end|>"], "<|im_start|>", "<|im_end|>", "", (257, 257)),
        (["<|im_start|>", "<|im_end|>"], "<|im_start|>", "<|im_end|>", "{{ bos_token }}", (256, 257)),
        (["<|endoftext|>", "<|im_start|>"], None, "<|endoftext|>", "", (256, 256)),
    ],
)
def test_tokens_of_turns_stand_round_no_document_where_the_base_has_others(
    tmp_path: Path, tokens: list[str], bos: str | None, eos: str, template: str, frame: tuple[int, int]
) -> None:
    made = Tokenizer(models.BPE(vocab={chr(0x100 + i): i for i in range(256)}, merges=[]))
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    made.save(str(tmp_path / "tokenizer.json"))
    roles = {"bos_token": bos, "eos_token": eos, "chat_template": template}
    written = {key: each for key, each in roles.items() if each} | {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(written))
    tokenizer = load_tokenizer(tmp_path)

    assert document_ids(tokenizer, "t") == frame
    assert made.token_to_id(eos) in end_ids(tokenizer)
    assert ("ends turns" in document_frame(tokenizer, "t")) is (eos == "<|im_end|>" and len(tokens) == 2)


def test_a_tokenizer_without_an_end_is_refused(tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.save(str(tokenizer_dir / "tokenizer.json"))
    (tokenizer_dir / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')

    with pytest.raises(DataError, match=r"neither <\|end_of_text\|> nor an eos_token"):
        document_ids(load_tokenizer(tokenizer_dir), "t")


def test_a_directory_without_config_weights_or_tokenizer_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config.json: no such file; give a Hugging Face model directory"):
        load_model(tmp_path)
    with pytest.raises(DataError, match="no tokenizer there"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(DataError, match=r"no model.safetensors or model.safetensors.index.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_pickled_weights_are_refused_unread(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")

    with pytest.raises(IntegrityError, match=rf"{name}: pickled weights can run code.*convert"):
        load_model(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_directory_is_not_run(tmp_path: Path, tokenizer_dir: Path, file: str) -> None:
    save_model(make(), tokenizer_dir, tmp_path / "out", torch.float32)
    content = json.loads((tmp_path / "out" / file).read_text())
    (tmp_path / "out" / file).write_text(json.dumps({**content, "auto_map": {"AutoModel": "evil.Model"}}))
    load = load_model if file == "config.json" else load_tokenizer

    with pytest.raises(IntegrityError, match="auto_map asks to run code"):
        load(tmp_path / "out")


def test_truncated_weights_are_an_integrity_error(tmp_path: Path, tokenizer_dir: Path) -> None:
    save_model(make(), tokenizer_dir, tmp_path / "out", torch.float32)
    weights = tmp_path / "out/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    with pytest.raises(IntegrityError, match="bytes, not the"):
        load_model(tmp_path / "out")


def test_a_model_is_scored_in_full_precision_on_a_cpu() -> None:
    assert pick_dtype(torch.device("cpu")) == torch.float32
    assert pick_dtype(torch.device("cuda", 0)) == torch.bfloat16


def test_the_row_of_the_token_for_padding_learns_like_others(tmp_path: Path) -> None:
    small_llama(pad_token_id=3).save_pretrained(tmp_path)
    model = load_model(tmp_path)

    model(torch.tensor([[1, 3, 2]])).logits.sum().backward()

    grad = model.get_input_embeddings().weight.grad
    assert grad[3].abs().max() > 0.1 * grad[1].abs().max() > 0


def test_windows_begin_with_bos_where_the_tokenizer_sets_it_before_every_text(tokenizer_dir: Path) -> None:
    sets_none = window_bos(load_tokenizer(tokenizer_dir))
    change_settings(tokenizer_dir, add_bos_token=True)  # as DeepSeek's says, whose tokenizer.json sets none
    asked = load_tokenizer(tokenizer_dir)
    change_settings(tokenizer_dir, add_bos_token=None)
    set_bos(tokenizer_dir)
    set_by_itself = window_bos(load_tokenizer(tokenizer_dir))

    assert (sets_none, window_bos(asked), set_by_itself) == (None, 256, 256)
    assert asked("a").input_ids[0] == 256
    assert encode_text(asked, "salam")[0] != 256


def change_settings(folder: Path, **settings: object) -> None:
    path = folder / "tokenizer_config.json"
    changed = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))


def test_the_text_of_the_built_in_data_survives(tmp_path: Path) -> None:
    tokenizer = base_tokenizer(Base(model="tiny"), tmp_path)
    lines = storage.built_in("builtin:az/prose.jsonl").read_text(encoding="utf-8").splitlines()[:20]
    texts = [json.loads(line)["text"] for line in lines]

    found = encode_texts(load_tokenizer(tokenizer), texts)

    decoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert [decoder.decode(ids) for ids in found] == texts
