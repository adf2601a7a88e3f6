from typing import Any

import pytest

from anadil.text.cut_patterns import (
    GPT_2_REGEX,
    LLAMA_3_REGEX,
    QWEN_REGEX,
    cut_of_new_vocabulary,
    known_pattern,
)
from tests.kit.pre_tokenizers import BYTES, split

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
