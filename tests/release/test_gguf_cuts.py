"""llama.cpp's pre-tokenizers: found by a tokenizer's expressions, and its ids held against the library's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoModelForCausalLM

from anadil.core.errors import PreflightError
from anadil.model.family_table import families
from anadil.model.load import encode_texts, load_tokenizer, save_model
from anadil.release.export.gguf_file import write_gguf
from anadil.release.export.gguf_refusal import DIGIT, NAMES, gguf_note, gguf_refusal
from anadil.text.cut_patterns import ALPHABET, GPT_2_REGEX, SYMBOLS
from tests.kit.families import make_family
from tests.kit.llama import small_llama
from tests.kit.llama_3 import SCRIPTS, make_llama_3, make_tokenizer, mixed_documents
from tests.kit.llama_cpp import opened
from tests.kit.marks import matrix, slow
from tests.kit.pre_tokenizers import BYTES, split
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.sentence_pieces import BLANK, LIKE_GEMMA, LIKE_LLAMA_2, LIKE_MISTRAL, make_pieces

LEADS = (0xC2, 0xC3, 0xC4, 0xC9, 0xCC, 0xD0, 0xD1, 0xD8, 0xD9, 0xE0, 0xE1, 0xE2, 0xE3, 0xEA, 0xEC, 0xF0, 0xF1)
METASPACE = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "never", "split": False}
TEXTS = [
    *SCRIPTS,
    *mixed_documents(40),
    "",
    " ",
    " a  b   c ",
    "if x:\n\n\n        return\t{\n    'a': 1}\n" * 3,
    "<td>1</td> <start>x<td>",
    f"{BLANK}{BLANK} literal",
    "aaaaaaa hahahahaha -------- ========",
    *(" " * number + "x" + "\n" * number for number in range(1, 20)),
]
TYPES = sorted(name for name, each in families().items() if each.gguf)
WRITERS = {each.gguf.architecture: name for name, each in sorted(families().items()) if each.gguf}.values()
"""One type of each architecture of llama.cpp; the others of an architecture are written alike."""
GELU = ("gemma", "gemma2", "gemma3_text", "gemma4_text", "starcoder2")
"""Types whose activation llama.cpp looks up in a table of FP16."""
WINDOW = ["sliding_attention", "full_attention"]
FULL_ONLY = {"sliding_window": None, "layer_types": ["full_attention"] * 4}
NEEDED: dict[str, dict[str, Any]] = {
    "exaone4": FULL_ONLY,
    "gemma4_text": {"vocab_size_per_layer_input": 888},
    "olmoe": {"num_key_value_heads": 4},
    "qwen3_moe": {"norm_topk_prob": True},
}
"""Settings of the types that llama.cpp computes only in part."""
LOCAL = {"rope_type": "default", "rope_theta": 2e3}


def write(directory: Path, out: Path) -> Path:
    write_gguf(directory, out, name="test")
    return out


@pytest.mark.parametrize("cuts", NAMES, ids=NAMES.values())
def test_each_pre_tokenizer_is_found_by_its_expressions_and_cuts_as_the_library_does(
    cuts: tuple[str, ...], tmp_path: Path
) -> None:
    directory = byte_pairs(cuts, tmp_path)
    documents = [*SCRIPTS[len(PRETRAINING_TEXTS) :], *mixed_documents(20)]
    ours = encode_texts(load_tokenizer(directory), documents)

    with opened(write(directory, tmp_path / "m.gguf")) as model:
        theirs = [model.encode(document) for document in documents]

    assert theirs == ours
    written = gguf.GGUFReader(tmp_path / "m.gguf").fields["tokenizer.ggml.pre"]
    assert bytes(written.parts[-1]).decode() == NAMES[cuts]


def byte_pairs(cuts: tuple[str, ...], folder: Path) -> Path:
    """A model whose tokens are pairs of the commonest bytes, so that ids show where a text was cut."""
    common = [SYMBOLS[byte] for byte in (*b" \n\r\t'.,!-/1239aAsStTlLeEr", *range(0x80, 0xC0, 3), *LEADS)]
    pairs = [(left, right) for left in common for right in common]
    vocab = {token: index for index, token in enumerate([*ALPHABET, *map("".join, pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    parts = [{"type": "Digits", "individual_digits": True} if each == DIGIT else split(each) for each in cuts]
    if cuts[-1] == GPT_2_REGEX:
        parts[-1:] = [{**BYTES, "use_regex": True}]
    else:
        parts.append({**BYTES, "use_regex": False})
    tokenizer.add_special_tokens([AddedToken("<|end_of_text|>", special=True, normalized=False)])
    content = json.loads(tokenizer.to_str()) | {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "decoder": {**BYTES, "use_regex": True},
    }
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/tokenizer.json").write_text(json.dumps(content))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(settings))
    save_model(small_llama(vocab_size=len(vocab) + 1), folder / "tokenizer", folder / "model", torch.float32)
    return folder / "model"


def test_a_byte_without_a_token_is_lost_by_llama_cpp_too(tmp_path: Path) -> None:
    directory = byte_pairs((DIGIT, GPT_2_REGEX), tmp_path)
    content = json.loads((directory / "tokenizer.json").read_text())
    lacked = "ñ"  # the first byte of four, of which planes 4 to 7 are written
    model = content["model"]
    model["merges"] = [pair for pair in model["merges"] if lacked not in "".join(pair)]
    used = [token for token in model["vocab"] if lacked not in token]
    model["vocab"] = {token: model["vocab"][token] for token in used}
    (directory / "tokenizer.json").write_text(json.dumps(content))
    texts = ["\U00040000a", "kitab \U00051234"]

    with opened(write(directory, tmp_path / "m.gguf")) as opened_model:
        theirs = [opened_model.encode(text) for text in texts]

    tokenizer = load_tokenizer(directory)
    assert theirs == encode_texts(tokenizer, texts)
    assert "lacks 1 of the 256 bytes" in gguf_note(Tokenizer.from_file(str(directory / "tokenizer.json")))


def test_nfc_is_taken_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = make_llama_3(tmp_path / "model")
    file = directory / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "NFC"}}))

    with caplog.at_level("WARNING"):
        write(directory, tmp_path / "m.gguf")

    assert "llama.cpp does not normalize: a text that is not in NFC becomes other tokens" in caplog.text


def model(folder: Path, how: dict[str, Any], change: Callable[[Any], object] = lambda _: None) -> Path:
    tokenizer = make_pieces(folder / "tokenizer", [text.replace("\0", "") for text in SCRIPTS] * 2, how)
    file = tokenizer / "tokenizer.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    rows = Tokenizer.from_file(str(file)).get_vocab_size()
    save_model(small_llama(vocab_size=rows), tokenizer, folder / "model", torch.float32)
    return folder / "model"


@pytest.mark.parametrize(
    "how",
    [LIKE_GEMMA, LIKE_LLAMA_2, {"normalizer": None, "pre_tokenizer": METASPACE}],
    ids=["gemma", "llama-2", "metaspace"],
)
def test_llama_cpp_cuts_as_a_tokenizer_of_sentencepieces_kind(how: dict[str, Any], tmp_path: Path) -> None:
    directory = model(tmp_path, how)
    tokenizer = load_tokenizer(directory)
    ours = encode_texts(tokenizer, TEXTS)
    whole = [tokenizer(f"{text}<eos>{text}").input_ids for text in TEXTS]

    write_gguf(directory, tmp_path / "m.gguf", name="test")
    with opened(tmp_path / "m.gguf") as loaded:
        theirs = [loaded.encode(text) for text in TEXTS]
        with_bos = [loaded.encode(f"{text}<eos>{text}", special=True, parse=True) for text in TEXTS]
        special = loaded.special

    assert sum(map(len, ours)) > 3_000
    assert theirs == ours
    assert with_bos == whole
    assert (special["bos"], special["eos"], special["pad"]) == (2, 1, 0)


def drop_byte(content: Any) -> None:
    del content["model"]["vocab"]["<0x41>"]


def drop_pair(content: Any) -> Any:
    """A token that merges make in two ways is made in one."""
    merges = content["model"]["merges"]
    tokens = ["".join(pair) for pair in merges]
    return merges.pop(next(at for at, text in enumerate(tokens) if tokens.count(text) > 1))


def part_pairs(content: Any) -> None:
    content["model"]["merges"].append(drop_pair(content))


def add_nul(content: Any) -> None:
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 9_000, "content": "a\0"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (drop_byte, "lacks 1 of the 256 bytes"),
        (drop_pair, "its merges do not make .* of .* and .*, and llama.cpp would"),
        (part_pairs, "the merges that make .* do not follow one another"),
        (lambda content: content.update(normalizer={"type": "NFKC"}), r"normalizes texts \(NFKC\)"),
        (lambda content: content.update(normalizer=None, pre_tokenizer=None), "does not mark spaces"),
        (lambda content: content.update(pre_tokenizer={"type": "Whitespace"}), "cuts texts otherwise"),
        (add_nul, "holds a NUL"),
        (lambda content: content["model"].update(ignore_merges=True), "whole pieces without merges"),
    ],
)
def test_what_llama_cpp_would_cut_otherwise_is_refused(
    change: Callable[[Any], object], reason: str, tmp_path: Path
) -> None:
    directory = model(tmp_path, LIKE_GEMMA, change)

    with pytest.raises(PreflightError, match=rf"llama\.cpp cannot read its tokenizer: .*{reason}"):
        write_gguf(directory, tmp_path / "m.gguf", name="test")


def test_a_cut_at_every_space_needs_tokens_that_hold_none(tmp_path: Path) -> None:
    how = {"normalizer": None, "pre_tokenizer": METASPACE | {"split": True}}

    assert not gguf_refusal(model(tmp_path / "a", how))
    crossing = model(
        tmp_path / "b", how, lambda content: content["model"]["vocab"].update({f"a{BLANK}b": 9_000})
    )
    assert "cuts at every space, and has tokens that hold one" in gguf_refusal(crossing)


def test_where_chats_differ_is_said(tmp_path: Path) -> None:
    directory = make_pieces(tmp_path, SCRIPTS, LIKE_MISTRAL)

    note = gguf_note(Tokenizer.from_file(str(directory / "tokenizer.json")))

    assert "space before a text that begins with one, and before text behind every special token" in note


def test_a_token_that_llama_cpp_takes_for_an_end_is_said(tmp_path: Path) -> None:
    directory = make_pieces(tmp_path, ["kitab ev"], LIKE_GEMMA)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert "control token" not in gguf_note(tokenizer)

    tokenizer.add_tokens(["</s>"])

    assert "takes the token '</s>' for a control token, which a text cannot hold" in gguf_note(tokenizer)


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **more}}


YARN = scaled("yarn", original_max_position_embeddings=64)
MINISTRAL_3 = {
    "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}  # fmt: skip
LLAMA_3 = scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def both(full: dict[str, Any], local: dict[str, Any] = LOCAL) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full["rope_parameters"], "sliding_attention": local}}


def make(folder: Path, kind: str, **changes: Any) -> Path:
    directory = make_family(folder / "model", kind, vocab_size=888, **{**NEEDED.get(kind, {}), **changes})
    for file in make_tokenizer(folder / "tokenizer").iterdir():
        shutil.copy(file, directory / file.name)
    return directory


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {**YARN, "head_dim": 16}),
        ("gemma3_text", {"sliding_window": 16}),
        *((slow if kind in WRITERS else matrix)(kind, {}) for kind in TYPES),
        matrix("gemma3_text", {"layer_types": [*WINDOW[:1] * 2, WINDOW[1], WINDOW[0]], "sliding_window": 16}),
        matrix("gemma3_text", {"layer_types": WINDOW[:1] * 4, "sliding_window": 16}),
        matrix("gemma3_text", {"layer_types": WINDOW[1:] * 4}),
        slow("gemma3_text", {**both(YARN), "sliding_window": 16}),
        slow("gemma3_text", {"final_logit_softcapping": 3.0, "tie_word_embeddings": False, "head_dim": 16}),
        matrix("gemma3_text", {"num_hidden_layers": 62, "layer_types": WINDOW * 31, "head_dim": 16}),
        slow("olmo3", {"sliding_window": 16, "layer_types": [*WINDOW[:1] * 3, WINDOW[1]]}),
        matrix("olmo3", both(YARN, {**LOCAL, "rope_theta": 1e4})),
        matrix("gemma2", {"sliding_window": 16}),
        slow("ministral3", {**scaled("yarn", **MINISTRAL_3), "head_dim": 16}),
        matrix("cohere2", {"sliding_window": 16, **scaled("linear")}),
        slow("olmo", {"clip_qkv": 0.5, **scaled("linear")}),
        slow("phi3", {"rope_parameters": {**LOCAL, "partial_rotary_factor": 0.5}, "num_key_value_heads": 1}),
        matrix("glm4", {"attention_bias": False, "head_dim": 16}),
        matrix("mistral", {**LLAMA_3, "head_dim": 16, "sliding_window": None}),
        slow("llama", {**LLAMA_3, "tie_word_embeddings": False, "num_key_value_heads": 4, "head_dim": 32}),
        slow(
            "llama", {**scaled("linear"), "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}
        ),
        slow("granite", {**LLAMA_3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        slow("qwen2", {**YARN, "num_key_value_heads": 4, "tie_word_embeddings": True}),
        matrix("qwen3", {**scaled("linear"), "num_key_value_heads": 1}),
        matrix("smollm3", {"tie_word_embeddings": False, **YARN}),
        matrix("seed_oss", {"attention_bias": False, "head_dim": 16}),
        matrix("ernie4_5", {"tie_word_embeddings": False, "head_dim": 16}),
        slow("lfm2", {"layer_types": ["full_attention", "conv"] * 2, "conv_L_cache": 4, **YARN}),
        matrix("lfm2", {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False, **scaled("linear")}),
        slow("qwen3_5_text", {"linear_num_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}),
        matrix(
            "qwen3_5_text",
            {
                **scaled("linear", mrope_section=[3, 3, 2], partial_rotary_factor=1.0),
                "head_dim": 32,
                "linear_num_key_heads": 4,
            },
        ),
    ],
)
def test_llama_cpp_computes_the_logits_of_transformers(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    directory = make(tmp_path, kind, **changes)

    assert difference(directory, tmp_path / "m.gguf") < (1e-2 if kind in GELU else 1e-4)


def difference(directory: Path, out: Path, precision: str | None = None) -> float:
    """The largest one of logits, by llama.cpp and by transformers."""
    ids = torch.randint(0, 880, (100,), generator=torch.Generator().manual_seed(4))
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        ours = model(input_ids=ids[None]).logits[0].numpy()
    assert np.abs(ours).max() > 1

    write_gguf(directory, out, name="test", precision=precision)
    with opened(out) as loaded:
        return float(np.abs(ours - loaded.logits(ids.tolist())).max())


SHARED = {"layer_types": [*WINDOW[:1] * 2, WINDOW[1]] * 2, "num_hidden_layers": 6, "num_kv_shared_layers": 3}


@pytest.mark.parametrize(
    "changes",
    [
        slow({**SHARED, "use_double_wide_mlp": True}),
        slow({"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}),
        matrix({"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "final_logit_softcapping": None}),
        matrix({"layer_types": [*WINDOW[1:] * 2, *WINDOW], "num_kv_shared_layers": 0}),
        matrix(
            both(
                {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0, "rope_theta": 1e4}}
            )
        ),
    ],
)  # fmt: skip
def test_gemma_4_is_the_same_but_for_its_activation(changes: dict[str, Any], tmp_path: Path) -> None:
    directory = make(tmp_path, "gemma4_text", sliding_window=16, **changes)
    tensors = load_file(directory / "model.safetensors")
    for name in tensors:
        if "down_proj" in name or name.endswith("per_layer_projection.weight"):
            tensors[name] = torch.zeros_like(tensors[name])  # what reads the activation
        if name.endswith("layer_scalar"):
            tensors[name] = torch.full_like(tensors[name], 0.9)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    assert difference(directory, tmp_path / "m.gguf") < 1e-4


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5_text"])
def test_convolutions_stay_in_fp32(kind: str, tmp_path: Path) -> None:
    directory = make(tmp_path, kind)

    assert difference(directory, tmp_path / "m.gguf", "fp16") < 0.05
    tensors = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    kept = [each for each in tensors if each.name.endswith(("conv.conv.weight", "conv1d.weight"))]
    assert [each.tensor_type.name for each in kept] == ["F32"] * 2


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("bitnet", {}, "model type 'bitnet' is not written as GGUF, only arcee, .*, qwen3"),
        ("qwen3", {"attention_bias": True}, "attention_bias is True, and llama.cpp's qwen3 computes False"),
        ("qwen2", LLAMA_3, "rotation scaled by 'llama3' .* only default, linear, yarn"),
        (
            "llama",
            {"rope_parameters": YARN["rope_parameters"] | {"attention_factor": 2.0}},
            "'yarn' with att",
        ),
        ("llama", scaled("dynamic"), "rotation scaled by 'dynamic'"),
        ("olmo2", {"head_dim": 16}, "head_dim is 16, and llama.cpp's olmo2 has only hidden size / heads"),
        ("olmo2", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ("olmo3", both(scaled("default")), "layers with a window have a base of their own"),
        ("gemma3_text", {"layer_types": [*WINDOW, WINDOW[1], WINDOW[0]]}, "do not alternate by one number"),
        ("gemma3_text", both(scaled("default"), scaled("linear")["rope_parameters"]), "scaled by 'linear'"),
        (
            "gemma2",
            {"layer_types": WINDOW[:1] * 3 + WINDOW[1:]},
            "do not alternate by 2 in llama.cpp's gemma2",
        ),
        ("gemma2", {"attn_logit_softcapping": None}, "attn_logit_softcapping has no value, and .* takes one"),
        ("olmoe", {"num_key_value_heads": 2}, "num_key_value_heads is 2, and llama.cpp's olmoe shares none"),
        ("olmoe", {"num_key_value_heads": 4, "tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ("qwen2_moe", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ("gemma2", {"layer_types": WINDOW[1:] * 4}, "do not alternate by 2 in llama.cpp's gemma2"),
        ("cohere2", {"layer_types": WINDOW[1:] * 4}, "do not alternate by 4 in llama.cpp's cohere2"),
        ("cohere2", {"sliding_window": None}, "sliding_window has no value"),
        ("cohere2", {"num_attention_heads": 2}, "head_dim is 8, and llama.cpp's cohere2 has only"),
        (
            "llama",
            {"rope_parameters": {**LOCAL, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("qwen2_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers is \[1\]"),
        (
            "ministral3",
            scaled("yarn", **{**MINISTRAL_3, "mscale": 0.7}),
            "'yarn' with mscale, mscale_all_dim",
        ),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "llama.cpp's smollm3 rotates three of four layers"),
        ("lfm2", {"conv_bias": True}, "conv_bias is True"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache is 1, and llama.cpp's lfm2 needs 2 or more"),
        (
            "lfm2",
            {"layer_types": WINDOW[1:] * 4},
            "its layers are full_attention, and llama.cpp's lfm2 needs each of conv, full_attention",
        ),
        ("qwen3_5_text", {"linear_value_head_dim": 16}, "linear_value_head_dim is 16, and .* takes .* 8"),
        (
            "qwen3_5_moe_text",
            {"layer_types": ["full_attention", "linear_attention"] * 2},
            "layers with linear and full attention do not alternate",
        ),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "gemma4 does not look ahead"),
        ("gemma4_text", {"vocab_size_per_layer_input": 900}, "vocab_size_per_layer_input is 900, .* 888"),
        (
            "gemma4_text",
            {**SHARED, "num_kv_shared_layers": 2},
            "num_kv_shared_layers is 2, and llama.cpp takes keys of sliding_attention and full_attention",
        ),
        ("gemma4_text", both(scaled("default")), "rotation scaled by 'default' .* only proportional"),
        ("gpt_oss", {}, "model type 'gpt_oss' is not written as GGUF"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    kind: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = make(tmp_path, kind, **changes)

    with pytest.raises(PreflightError, match=rf"{reason}.*; export with --format hf"):
        write_gguf(directory, tmp_path / "m.gguf", name="test")

    assert not (tmp_path / "m.gguf").exists()


def test_a_window_that_llama_cpp_does_not_know_is_the_longest_context(tmp_path: Path) -> None:
    directory = make(tmp_path, "mistral", sliding_window=100)

    write_gguf(directory, tmp_path / "m.gguf", name="test")

    field = gguf.GGUFReader(tmp_path / "m.gguf").fields["llama.context_length"]
    assert field.contents() == 100
