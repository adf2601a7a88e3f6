import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from anadil.artifacts.base_vocabulary import base_settings, read_base
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError
from anadil.finetune import chat_format
from anadil.model.load import document_ids, encode_texts, load_tokenizer, save_model
from anadil.release.export import gguf_file
from anadil.release.export.gguf_file import read_vocabulary, write_gguf
from anadil.text.cut_patterns import LLAMA_3_REGEX, QWEN_REGEX
from anadil.tokenizer.bpe import train_vocabulary
from anadil.tokenizer.candidate import TokenizerCandidate, replace_vocabulary, write_tokenizer
from anadil.tokenizer.makers import recut_base
from anadil.tokenizer.pretokens import count_texts
from tests.kit.base_styles import make_base_tokenizer
from tests.kit.llama import small_llama
from tests.kit.llama_3 import SCRIPTS, make_llama_3, mixed_documents
from tests.kit.llama_cpp import opened
from tests.kit.pre_tokenizers import BYTES, split


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama_3(tmp_path_factory.mktemp("made") / "model")


def write(directory: Path, out: Path, precision: str | None = None) -> Path:
    write_gguf(directory, out, name="test", precision=precision)
    return out


def by_transformers(directory: Path, ids: torch.Tensor) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0].numpy()


def some_ids(number: int = 200) -> torch.Tensor:
    return torch.randint(0, 880, (number,), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    ("precision", "kind", "difference"), [("fp16", "F16", 0.01), ("bf16", "BF16", 0.1), ("q8_0", "Q8_0", 0.5)]
)
def test_fewer_bits_give_a_smaller_file_of_nearly_the_same_model(
    precision: str, kind: str, difference: float, made: Path, tmp_path: Path
) -> None:
    whole, file = write(made, tmp_path / "whole.gguf"), write(made, tmp_path / "m.gguf", precision)
    ids = some_ids(64)

    with opened(file) as model:
        theirs = model.logits(ids.tolist())

    types = {each.name: each.tensor_type.name for each in gguf.GGUFReader(file).tensors}
    assert types["blk.0.attn_q.weight"] == types["token_embd.weight"] == kind
    assert types["blk.0.attn_norm.weight"] == types["rope_freqs.weight"] == "F32"
    assert file.stat().st_size < 0.6 * whole.stat().st_size
    assert np.abs(by_transformers(made, ids) - theirs).max() < difference


def test_a_model_in_bf16_stays_in_bf16_or_becomes_fp32_with_the_same_numbers(tmp_path: Path) -> None:
    directory = make_llama_3(tmp_path / "model", torch.bfloat16)
    ids = some_ids()

    with opened(write(directory, tmp_path / "whole.gguf", "fp32")) as model:
        assert np.abs(by_transformers(directory, ids) - model.logits(ids.tolist())).max() < 1e-4
    reader = gguf.GGUFReader(write(directory, tmp_path / "m.gguf"))

    (embedding,) = [each for each in reader.tensors if each.name == "token_embd.weight"]
    weights = AutoModelForCausalLM.from_pretrained(directory).get_input_embeddings().weight
    assert embedding.tensor_type.name == "BF16"
    assert embedding.data.tobytes() == weights.detach().view(torch.int16).numpy().tobytes()


def test_llama_cpp_cuts_a_thousand_documents_into_our_tokens(made: Path, tmp_path: Path) -> None:
    documents = mixed_documents(1_000)
    tokenizer = load_tokenizer(made)
    ours = encode_texts(tokenizer, documents)
    plain: Any = AutoTokenizer.from_pretrained(made)
    whole = plain(documents[:100]).input_ids

    with opened(write(made, tmp_path / "m.gguf")) as model:
        theirs = [model.encode(document) for document in documents]
        with_bos = [model.encode(document, special=True, parse=True) for document in documents[:100]]

    assert sum(map(len, ours)) > 50_000
    assert theirs == ours
    assert with_bos == whole


def test_llama_cpp_reads_a_vocabulary_that_has_replaced_gpt_2s(tmp_path: Path) -> None:
    base = read_base(make_base_tokenizer(tmp_path / "base", "gpt2"))
    recut = recut_base(base)
    counts = count_texts(recut, SCRIPTS * 2)
    replaced = replace_vocabulary(recut, *train_vocabulary(counts, 600, 2).cut(600))
    candidate = TokenizerCandidate(strategy="replace", asked=601, got=601, tokenizer=replaced)
    settings = base_settings(tmp_path / "base", base)
    write_tokenizer(candidate, tmp_path / "base", settings, "{{ messages }}", tmp_path / "tokenizer")
    save_model(small_llama(vocab_size=640), tmp_path / "tokenizer", tmp_path / "model", torch.float32)
    documents = mixed_documents(300)

    with opened(write(tmp_path / "model", tmp_path / "m.gguf")) as model:
        theirs, end = [model.encode(document) for document in documents], model.special["eos"]

    tokenizer = load_tokenizer(tmp_path / "model")
    assert theirs == encode_texts(tokenizer, documents)
    assert end == tokenizer.eos_token_id == 600


@pytest.mark.parametrize(
    ("template", "adds"), [("{{ messages }}", True), ("<|im_start|>{{ messages }}", False)]
)
def test_a_prompt_begins_as_documents_do_where_the_base_sets_nothing(
    template: str, adds: bool, tmp_path: Path
) -> None:
    """As Qwen's: the end of text stands before each document, and chats may begin otherwise."""
    base = read_base(make_base_tokenizer(tmp_path / "base", "gpt2"))
    base.add_special_tokens(["<|im_start|>"])
    candidate = TokenizerCandidate(strategy="base", asked=0, got=0, tokenizer=base)
    write_tokenizer(
        candidate, tmp_path / "base", {"eos_token": "<|endoftext|>"}, template, tmp_path / "tokenizer"
    )
    size = base.get_vocab_size()
    save_model(small_llama(vocab_size=size), tmp_path / "tokenizer", tmp_path / "model", torch.float32)
    tokenizer: Any = load_tokenizer(tmp_path / "model")
    begin, _ = document_ids(tokenizer, "model")
    trained = [begin, *encode_texts(tokenizer, ["Salam"])[0]]

    with opened(write(tmp_path / "model", tmp_path / "m.gguf")) as model:
        asked = model.encode("Salam", special=True, parse=True)
        first = model.logits(trained)[-1]

    assert tokenizer("Salam").input_ids == trained
    assert asked == (trained if adds else trained[1:])
    without = by_transformers(tmp_path / "model", torch.tensor(trained[1:]))[-1]
    assert np.abs(by_transformers(tmp_path / "model", torch.tensor(trained))[-1] - first).max() < 1e-3
    assert np.abs(first - without).max() > 0.01


def test_special_tokens_have_their_roles_and_the_template_writes_one_bos(made: Path, tmp_path: Path) -> None:
    tokenizer: Any = load_tokenizer(made)
    ids = {role: getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    chat = [{"role": "user", "content": "Salam!"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

    with opened(write(made, tmp_path / "m.gguf")) as model:
        assert model.special == ids | {"eot": end}
        assert model.ends(end)
        assert model.ends(ids["eos"])
        assert not model.ends(ids["bos"])
        assert model.template() == tokenizer.chat_template
        # As llama.cpp's server does it: the template's own BOS, none of the tokenizer.
        assert model.encode(text, parse=True).count(ids["bos"]) == 1
        assert model.encode("<|eot_id|>", parse=False) != [end]


def test_every_server_writes_one_bos_before_a_prompt(made: Path, tmp_path: Path) -> None:
    """The template writes one, and so does the tokenizer where it is asked to; two cost quality, and nobody is told.

    vLLM cannot run here, these are its calls. Source: vllm-project/vllm, vllm/entrypoints/openai/protocol.py:
    `add_special_tokens` is True in a CompletionRequest and False in a ChatCompletionRequest.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(made)
    chat, text = [{"role": "user", "content": "Salam, necəsən?"}], "Salam, necəsən?"
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    completion = tokenizer(text, add_special_tokens=True)["input_ids"]
    answered = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    num_bos = [
        ids.count(tokenizer.bos_token_id) for ids in (completion, answered, tokenizer(prompt).input_ids)
    ]

    # The last is what the guide warns of: a chat written out and sent as a plain text.
    assert num_bos == [1, 1, 2]
    xllamacpp: Any = pytest.importorskip("xllamacpp", reason="on x86-64 Linux: pip install xllamacpp")
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(write(made, tmp_path / "m.gguf"))
    wanted.n_ctx, wanted.cpuparams.n_threads, wanted.warmup, wanted.use_jinja = 256, 1, False, True
    server = xllamacpp.Server(wanted)
    # llama.cpp's server tells the number of tokens: another BOS would be one more than Transformers has.
    told = [
        server.handle_completions({"prompt": text, "max_tokens": 1}),
        server.handle_chat_completions({"messages": chat, "max_tokens": 1}),
    ]
    assert [each["usage"]["prompt_tokens"] for each in told] == [len(completion), len(answered)]


def test_llama_cpps_server_takes_a_template_whose_default_system_turn_is_out(
    made: Path, tmp_path: Path
) -> None:
    xllamacpp: Any = pytest.importorskip("xllamacpp", reason="on x86-64 Linux: pip install xllamacpp")
    place = shutil.copytree(made, tmp_path / "model")
    tokenizer: Any = AutoTokenizer.from_pretrained(place)
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    turn = head.format("system") + "Sən faydalı köməkçisən.<|eot_id|>"
    written = (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}" + turn + "{% endif %}"
        + head.format("{{ m.role }}") + "{{ m.content }}<|eot_id|>{% endfor %}"
        + "{% if add_generation_prompt %}" + head.format("assistant") + "{% endif %}"
    )  # fmt: skip
    chat = [{"role": "user", "content": "Salam!"}]
    tokenizer.chat_template = chat_format._without_turn(written, turn)
    tokenizer.save_pretrained(place)

    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == head.format("user") + "Salam!<|eot_id|>" + head.format("assistant")
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    params = xllamacpp.CommonParams()
    params.model.path = str(write(place, tmp_path / "m.gguf"))
    params.n_ctx, params.cpuparams.n_threads, params.warmup, params.use_jinja = 256, 1, False, True
    answer = xllamacpp.Server(params).handle_chat_completions({"messages": chat, "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_rows_of_the_embedding_without_a_token_are_filled_up_beside_a_token_of_such_a_name(
    tmp_path: Path,
) -> None:
    directory = make_llama_3(tmp_path / "model", vocab_size=960)
    vocabulary = read_vocabulary(directory, 960)
    assert (vocabulary.tokens[-1], vocabulary.types[-1]) == ("[PAD959]", int(gguf.TokenType.UNUSED))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens(["[PAD959]"])
    tokenizer.save(str(directory / "tokenizer.json"))

    with opened(write(directory, tmp_path / "m.gguf")) as model:
        assert model.num_tokens == 960
        assert model.encode("[PAD959]") == [888]


def test_weights_in_several_files_are_read_by_their_index(made: Path, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(made)
    model.save_pretrained(tmp_path / "model", max_shard_size="200KB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "model" / name).write_bytes((made / name).read_bytes())
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2

    file = write(tmp_path / "model", tmp_path / "m.gguf")

    ids = some_ids(32)
    with opened(file) as loaded:
        assert np.abs(by_transformers(made, ids) - loaded.logits(ids.tolist())).max() < 1e-4


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts]}}


def changed(made: Path, folder: Path, change: Any) -> Path:
    folder.mkdir()
    for file in made.iterdir():
        (folder / file.name).hardlink_to(file)
    content = json.loads((made / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def rewrite_config(directory: Path, **changes: Any) -> None:
    """Change config.json, which may be a link to another model's."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps(config | changes))


def test_a_tensor_that_no_llama_has_and_a_damaged_file_are_refused(made: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(made / "model.safetensors")
    for name in ("norm", "cut"):
        changed(made, tmp_path / name, lambda _: None)
        (tmp_path / name / "model.safetensors").unlink()
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(64)
    save_file(tensors, tmp_path / "norm/model.safetensors")
    (tmp_path / "cut/model.safetensors").write_bytes((made / "model.safetensors").read_bytes()[:10_000])

    with pytest.raises(IntegrityError, match=r"asks for none, the first model\.layers\.0\.self_attn\.q_norm"):
        write(tmp_path / "norm", tmp_path / "m.gguf")
    with pytest.raises(IntegrityError, match="bytes, not the"):
        write(tmp_path / "cut", tmp_path / "m.gguf")


def test_a_head_that_config_calls_tied_is_written(tmp_path: Path) -> None:
    directory = make_llama_3(tmp_path / "model", tie_word_embeddings=False)
    rewrite_config(directory, tie_word_embeddings=True)

    write(directory, tmp_path / "m.gguf")

    assert "output.weight" in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}


def test_numbers_that_fp16_cannot_hold_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.x: holds numbers beyond 65,504"):
        gguf_file.packed(torch.tensor([[1.0, 1e6]]), gguf.GGMLQuantizationType.F16, "model.x")


def test_version_4s_spelling_of_the_rotation_gives_the_same_file(made: Path, tmp_path: Path) -> None:
    directory = changed(made, tmp_path / "model", lambda _: None)
    config = json.loads((made / "config.json").read_text())
    assert {"rope_theta", "rope_scaling", "torch_dtype"} <= config.keys()
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps(old))

    assert write(directory, tmp_path / "a.gguf").read_bytes() == write(made, tmp_path / "b.gguf").read_bytes()


def test_a_tensor_at_a_time_is_in_memory(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer holds descriptions of tensors, and gets the numbers of one after the other."""
    held: list[int] = []

    class Writer(gguf.GGUFWriter):
        def write_tensor_data(self, tensor: Any, tensor_endianess: Any = None) -> None:
            held.append(sum(each.tensor is not None for part in self.tensors for each in part.values()))
            super().write_tensor_data(tensor, tensor_endianess)

    monkeypatch.setattr("anadil.release.export.gguf_file.GGUFWriter", Writer)

    write(made, tmp_path / "m.gguf")

    assert held == [0] * 30  # of three layers


def unmerge(content: Any) -> None:
    content["model"] |= {"ignore_merges": False, "merges": content["model"]["merges"][:-1]}


def drop_byte(content: Any) -> None:
    content["model"]["vocab"].pop("ÿ")
    content["model"]["unk_token"] = "!"


def add_token(content: Any) -> None:
    content["added_tokens"].append({**content["added_tokens"][-1], "content": "<|more|>", "id": 888})


@pytest.mark.parametrize(
    ("change", "config", "error", "message"),
    [
        (sequence(split(f"{LLAMA_3_REGEX}|x"), BYTES), {}, PreflightError, "another expression.*export with --format hf"),
        (sequence(split(r"\p{N}{2}"), split(QWEN_REGEX), BYTES), {}, PreflightError, "another expression"),
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": True}}, {}, PreflightError, "another expression"),
        ({"normalizer": {"type": "NFKC"}}, {}, PreflightError, "it normalizes texts"),
        (unmerge, {}, PreflightError, "its merges do not make the token"),
        (drop_byte, {}, PreflightError, "reads a byte that it lacks as its unknown token"),
        (add_token, {}, DataError, r"'<\|more\|>' has id 888, and the model's embedding has 888 rows"),
        ({}, {"hidden_act": "gelu"}, PreflightError, "hidden_act is 'gelu', and llama.cpp's llama computes 'silu'"),
        ({}, {"num_hidden_layers": 4}, IntegrityError, r"asks for 4 layers .*, and its files hold 3"),
        ({}, {"tie_word_embeddings": False}, IntegrityError, "1 missing, the first lm_head"),
        ({}, {"intermediate_size": 24}, IntegrityError, "of another shape, the first model.layers.0.mlp"),
    ],
)  # fmt: skip
def test_what_llama_cpp_would_read_or_compute_otherwise_is_refused(
    change: Any, config: dict[str, Any], error: type[AnadilError], message: str, made: Path, tmp_path: Path
) -> None:
    alter = change if callable(change) else lambda content: content.update(change)
    directory = changed(made, tmp_path / "model", alter)
    rewrite_config(directory, **config)

    with pytest.raises(error, match=message):
        write(directory, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_merges_that_are_not_needed_may_be_asked_for(made: Path, tmp_path: Path) -> None:
    same = changed(made, tmp_path / "same", lambda content: content["model"].update(ignore_merges=False))

    assert write(same, tmp_path / "m.gguf").is_file()
