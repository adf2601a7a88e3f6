import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.ngram_profile import letters_of
from anadil.text.word_endings import (
    ending_buckets,
    small_letters_of,
)


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Bakı şəhəri NATO-nun iPhone", " şəhəri nun iphone "),
        ("İstanbul'da ısıtır", " da ısıtır "),
        ("ev Kitab ev", " ev ev "),
        ("किताबें पढ़ो।", " किताबें पढ़ो "),
        ("ŞƏHƏR", " "),
        ("", " "),
    ],
)
def test_words_with_a_capital_do_not_count_since_names_end_in_any_way(text: str, letters: str) -> None:
    assert small_letters_of(text).split() == letters.split()


@given(st.text("abə ", max_size=40))
def test_words_of_one_ending_have_one_bucket_and_no_others(text: str) -> None:
    letters = letters_of(text)
    found = dict(zip(letters.split(), ending_buckets(letters).tolist(), strict=True))

    for first, second in itertools.combinations(found, 2):
        assert (found[first] == found[second]) == (first[-4:] == second[-4:])
