"""SentencePiece's kind of tokenizer in GGUF: scores are found by tokenizer.json alone, and ids held against llama.cpp."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from anadil.core.errors import PreflightError
from anadil.model.load import encode_texts, load_tokenizer, save_model
from anadil.release.export.gguf_file import write_gguf
from anadil.release.export.gguf_refusal import gguf_note, gguf_refusal
from tests.kit.llama import small_llama
from tests.kit.llama_3 import SCRIPTS, mixed_documents
from tests.kit.llama_cpp import opened
from tests.kit.sentence_pieces import BLANK, LIKE_GEMMA, LIKE_LLAMA_2, make_pieces

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
    first = {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "first"}}
    directory = make_pieces(tmp_path, SCRIPTS, first)

    note = gguf_note(Tokenizer.from_file(str(directory / "tokenizer.json")))

    assert (
        "puts a space before a text that begins with one, and before text behind every special token" in note
    )


def test_a_token_that_llama_cpp_takes_for_an_end_is_said(tmp_path: Path) -> None:
    directory = make_pieces(tmp_path, ["kitab ev"], LIKE_GEMMA)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert "control token" not in gguf_note(tokenizer)

    tokenizer.add_tokens(["</s>"])

    assert "takes the token '</s>' for a control token, which a text cannot hold" in gguf_note(tokenizer)
