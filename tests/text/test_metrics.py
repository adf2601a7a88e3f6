import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.core.errors import DataError
from anadil.text.metrics import bits_per_byte, deciding_scores, distinct, fertility, is_loop, words_in_context


def test_fertility_is_tokens_over_words() -> None:
    assert fertility(322, 100) == pytest.approx(3.22)


def test_no_words_is_a_data_error() -> None:
    with pytest.raises(DataError, match="fertility: the text has no words; give held-out text"):
        fertility(3, 0)


def test_half_the_fertility_holds_twice_the_words() -> None:
    assert words_in_context(131_072, 3.22) == 40_705
    assert words_in_context(131_072, 1.61) == 81_411


def test_a_uniform_guess_of_bytes_is_eight_bits() -> None:
    assert bits_per_byte(math.log(256) * 10, 10) == pytest.approx(8)


def test_no_bytes_is_a_data_error() -> None:
    with pytest.raises(DataError, match="bits per byte: the text has no bytes; give held-out text"):
        bits_per_byte(1.0, 0)


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [
        ([1, 2, 3, 4], 1, 1.0),
        ([1, 1, 1, 1], 1, 0.25),
        ([1, 2, 1, 2], 2, 2 / 3),
        ([1, 2], 4, 0.0),
        ([], 1, 0.0),
    ],
)
def test_distinct_is_the_share_of_different_ngrams(tokens: list[int], n: int, share: float) -> None:
    assert distinct(tokens, n) == pytest.approx(share)


@given(st.lists(st.integers(0, 50), max_size=20), st.lists(st.integers(0, 50), min_size=1, max_size=32))
def test_whatever_stands_before_it_four_repeats_at_the_end_are_a_loop(
    before: list[int], part: list[int]
) -> None:
    assert is_loop(before + part * 4)


@pytest.mark.parametrize(
    "tokens",
    [[], [1, 1, 1], list(range(100)), [1, 2] * 3, [1] * 10 + [2], list(range(33)) * 4],
    ids=["empty", "three", "all different", "three pairs", "recovered", "longer than 32"],
)
def test_less_than_that_is_no_loop(tokens: list[int]) -> None:
    assert not is_loop(tokens)


def test_the_deciding_scores_are_grouped_by_what_they_measure() -> None:
    table = {"bits_per_byte": 1.5, "retained": {"en": 2.5}, "repetition": {"greedy": {"loop_rate": 0.25}}}

    found = deciding_scores({"candidates": {"adapted": table}, "gate": {"passed": True}})

    assert found == {
        "gate_passed": 1.0, "bits_per_byte/adapted": 1.5, "retained_en/adapted": 2.5, "loop_rate/adapted": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"candidates": [1]},
        {"candidates": {"a": 3, "b": {"retained": "x", "fertility": math.nan}}},
        {"gate": 1},
    ],
)
def test_scores_of_another_shape_have_no_deciding_figures(scores: dict[str, object]) -> None:
    assert deciding_scores(scores) == {}
