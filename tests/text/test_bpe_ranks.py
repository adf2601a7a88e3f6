"""Which tokenizers can be written as ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from anadil.artifacts.base_model import read_tokenizer
from anadil.text.bpe_ranks import BpeRanks, ranks_of
from anadil.text.byte_symbols import ALPHABET
from tests.kit.pretraining import make_tokenizer


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"}}, "cut by a pattern"),
        ({"pre_tokenizer": None}, "cut by a pattern"),
        (
            {
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            },
            "cut by a pattern",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                }
            },
            "cut by a pattern",
        ),
        ({"model": {"dropout": 0.1}}, "has dropout"),
        ({"model": {"byte_fallback": True}}, "has byte_fallback"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "has end_of_word_suffix"),
    ],
)
def test_a_tokenizer_of_another_kind_is_left_to_its_own_library(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    content = json.loads(read_tokenizer(make_tokenizer(tmp_path)).to_str())
    assert isinstance(ranks_of(Tokenizer.from_str(json.dumps(content))), BpeRanks)
    changed = {
        name: value | change.get(name, {}) if name == "model" else value for name, value in content.items()
    }
    if "pre_tokenizer" in change:
        changed["pre_tokenizer"] = change["pre_tokenizer"]
    tokenizer = Tokenizer.from_str(json.dumps(changed))

    found = ranks_of(tokenizer)

    assert isinstance(found, str)
    assert why in found


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
