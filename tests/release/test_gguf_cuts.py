"""llama.cpp's pre-tokenizers: found by a tokenizer's expressions, and its ids held against the library's."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models

from anadil.model.load import encode_texts, load_tokenizer, save_model
from anadil.release.export.gguf_file import write_gguf
from anadil.release.export.gguf_refusal import DIGIT, NAMES, gguf_note
from anadil.text.byte_symbols import ALPHABET, SYMBOLS
from anadil.text.cut_patterns import GPT_2_REGEX
from tests.kit.llama import small_llama
from tests.kit.llama_3 import SCRIPTS, make_llama_3, mixed_documents
from tests.kit.llama_cpp import opened
from tests.kit.pre_tokenizers import BYTES, split
from tests.kit.pretraining_texts import PRETRAINING_TEXTS


def write(directory: Path, out: Path) -> Path:
    write_gguf(directory, out, name="test")
    return out


LEADS = (0xC2, 0xC3, 0xC4, 0xC9, 0xCC, 0xD0, 0xD1, 0xD8, 0xD9, 0xE0, 0xE1, 0xE2, 0xE3, 0xEA, 0xEC, 0xF0, 0xF1)


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
