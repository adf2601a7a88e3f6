import re

from anadil.clean.filters.judge import Judge
from anadil.language.spared_limits import MOST_REPETITION, REPETITION, spare_good
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
