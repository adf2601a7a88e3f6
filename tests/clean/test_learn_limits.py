import re

import numpy as np
import pytest

from anadil.clean.filters.judge import Judge
from anadil.language.learn_limits import MOST_REPETITION, REPETITION, source_quantile, spare_good
from anadil.recipe.filter_rules import Rules
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts

az = load_language("az")


def test_limits_that_a_language_does_not_keep_are_loosened_until_its_own_text_does() -> None:
    good = [re.sub("[.!?]", "", text) for text in texts(100)]
    judge = Judge(az)
    statistics = judge.judge(good).statistics

    spared = spare_good(statistics, judge)

    assert set(judge.judge(good).reasons) == {"sentence_length"}
    assert set(Judge(az, Rules.model_validate(spared)).judge(good).reasons) == {None}


def test_a_few_lists_of_a_sample_do_not_let_pages_of_one_paragraph_through() -> None:
    lists = ["Məktəblər şagirdlərə yeni kitablar verir və onlar oxuyur.\n" * 30] * 3
    judge = Judge(az)
    statistics = judge.judge([*texts(97), *lists]).statistics

    spared = spare_good(statistics, judge)

    repetition = {key: limit for key, limit in spared.items() if key.startswith(REPETITION)}
    assert repetition
    assert max(repetition.values()) == MOST_REPETITION
    repeated = Judge(az, Rules.model_validate(repetition)).judge(lists)
    assert None not in repeated.reasons


@pytest.mark.parametrize("num_documents", [30, 100, 400])
def test_a_limit_of_few_documents_drops_as_much_of_their_source_as_it_says(num_documents: int) -> None:
    draw = np.random.default_rng(0)
    shares = [
        np.exp(-source_quantile(draw.exponential(size=num_documents), 0.001, largest=True))
        for _ in range(500)
    ]

    assert 0.0004 < np.median(shares) < 0.002  # beyond the greatest of the sample lie .03, .01 and .0025


def test_both_tails_are_alike() -> None:
    values = np.random.default_rng(1).normal(size=300)

    assert source_quantile(values, 0.002, largest=True) == pytest.approx(
        -source_quantile(-values, 0.002, largest=False)
    )


def test_many_documents_are_believed() -> None:
    values = np.random.default_rng(2).normal(size=100_000)

    assert source_quantile(values, 0.01, largest=False) == pytest.approx(np.quantile(values, 0.01), abs=1e-3)


def test_widening_is_a_part_of_the_way_from_the_median() -> None:
    values = np.arange(10_001.0)

    assert source_quantile(values, 0.1, largest=True, widened=0.5) == pytest.approx(
        5_000 + 1.5 * 4_000, abs=2
    )


@pytest.mark.parametrize("values", [[4.0], [4.0, 4.0]])
def test_one_value_says_no_more_than_itself(values: list[float]) -> None:
    assert source_quantile(values, 0.001, largest=True) == 4.0
