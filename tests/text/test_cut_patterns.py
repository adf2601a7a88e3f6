import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from anadil.artifacts.base_model import read_tokenizer
from anadil.text.cut_patterns import (
    ALPHABET,
    GPT_2_REGEX,
    LLAMA_3_REGEX,
    QWEN_REGEX,
    cut_of_new_vocabulary,
    known_pattern,
)
from anadil.text.encoder import BpeRanks, ranks_of
from tests.kit.pre_tokenizers import BYTES, split
from tests.kit.pretraining import make_tokenizer

BY_GPT_2 = BYTES | {"use_regex": True}


def digits(*, single: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": single}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


@pytest.mark.parametrize(
    ("base", "pattern"),
    [
        (BY_GPT_2, LLAMA_3_REGEX),
        ({key: value for key, value in BY_GPT_2.items() if key != "use_regex"}, LLAMA_3_REGEX),
        (sequence(digits(single=False), BY_GPT_2), LLAMA_3_REGEX),
        # SmolLM 2 and StarCoder 2: a model that reads digits one by one goes on doing so.
        (sequence(digits(single=True), BY_GPT_2), QWEN_REGEX),
    ],
)
def test_a_new_vocabulary_is_not_cut_as_gpt_2_is(base: dict[str, Any], pattern: str) -> None:
    found = cut_of_new_vocabulary(base)

    assert found == sequence(split(pattern), BYTES)
    assert known_pattern(found) == pattern


@pytest.mark.parametrize(
    "base",
    [
        sequence(split(LLAMA_3_REGEX), BYTES),
        sequence(split(QWEN_REGEX), BYTES),
        sequence(split(GPT_2_REGEX.replace("+", "")), BYTES),
        BY_GPT_2 | {"add_prefix_space": True},
    ],
)
def test_every_other_cut_is_the_bases_own(base: dict[str, Any]) -> None:
    assert cut_of_new_vocabulary(base) is base


def byte_level(*, add_prefix_space: bool, use_regex: bool) -> dict[str, Any]:
    cut = {"add_prefix_space": add_prefix_space, "use_regex": use_regex}
    return {"pre_tokenizer": {"type": "ByteLevel", "trim_offsets": True, **cut}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"}}, "cut by a pattern"),
        ({"pre_tokenizer": None}, "cut by a pattern"),
        (byte_level(add_prefix_space=True, use_regex=True), "cut by a pattern"),
        (byte_level(add_prefix_space=False, use_regex=False), "cut by a pattern"),
        ({"model": {"dropout": 0.1}}, "has dropout"),
        ({"model": {"byte_fallback": True}}, "it cuts texts otherwise than SentencePiece"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "has end_of_word_suffix"),
    ],
)
def test_a_tokenizer_of_another_kind_is_left_to_its_own_library(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    content = json.loads(read_tokenizer(make_tokenizer(tmp_path)).to_str())
    assert isinstance(ranks_of(Tokenizer.from_str(json.dumps(content))), BpeRanks)
    model = content["model"] | change.get("model", {})

    reason = ranks_of(Tokenizer.from_str(json.dumps({**content, **change, "model": model})))

    assert why in str(reason)


def test_a_vocabulary_without_every_byte_is_left_to_tokenizers() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    assert "lacks some of the 256 bytes" in str(ranks_of(tokenizer))


def test_a_token_that_its_text_is_not_merged_to_keeps_the_fast_way_out() -> None:
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    vocab = {token: index for index, token in enumerate([*ALPHABET, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    assert "not what their own text is merged to" in str(ranks_of(tokenizer))
