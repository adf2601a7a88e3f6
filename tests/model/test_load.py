import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM

from anadil.artifacts import storage
from anadil.artifacts.base_model import base_tokenizer
from anadil.core.errors import DataError, IntegrityError
from anadil.model.load import (
    document_frame,
    document_ids,
    encode_text,
    encode_texts,
    end_ids,
    load_model,
    load_tokenizer,
    pick_dtype,
    save_model,
    window_bos,
)
from anadil.recipe.sections import Base
from tests.kit.llama import small_llama
from tests.kit.pretraining import SPECIALS, set_bos


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


def test_a_saved_model_has_what_others_need_and_no_more(tmp_path: Path, tokenizer_dir: Path) -> None:
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
