import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.ngram_profile import codes_of, letters_of
from anadil.text.word_shapes import (
    WINDOW,
    distinct_words,
    ending_buckets,
    inner_capitals,
    inner_signs,
    small_letters_of,
)


@pytest.mark.parametrize(
    ("text", "num_signs"),
    [
        ("Bu gün, saat 12:30-da görüşdük.", 0),  # signs beside words and figures
        ("k1tab oxu~yan uş|ql4r", 4),
        ("ata-ana O'nun f(x) a.b@c/d", 0),
        ("प्रयोग करने", 0),  # signs of vowels are letters
        ("日本語。「日本語」、日本", 0),  # no blank behind a full stop
        ("མི་རིགས་ Ի՞նչ שני־ה", 0),  # signs of other scripts within words
        ("日本!語", 1),
        ("", 0),
        ("12 34", 0),
        ("\ud800a!b", 1),
    ],
)
def test_figures_and_unusual_signs_within_words_are_counted_for_each_letter(
    text: str, num_signs: int
) -> None:
    num_letters = max(1, sum(each.isalpha() or each in "\u094d\u0930\u092f\u094b\u0947" for each in text))

    assert inner_signs(codes_of(text)) == pytest.approx(num_signs / num_letters)


def test_capitals_behind_small_letters_are_counted_where_there_are_many_letters() -> None:
    text = "KITAB Uşaq\noxuYan "  # 15 letters

    assert math.isnan(inner_capitals(text * 21))
    assert inner_capitals(text * 22) == pytest.approx(1 / 15)


def test_a_long_text_has_as_many_distinct_words_in_a_window_as_a_short_one() -> None:
    draw = random.Random(1)
    words = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    spam = [draw.choice(words[:8]) for _ in range(10 * WINDOW)]

    assert math.isnan(distinct_words(letters_of(" ".join(words))))
    assert distinct_words(letters_of(" ".join(words * 2))) == pytest.approx(100 / WINDOW)
    assert distinct_words(letters_of(" ".join(words * 20))) == pytest.approx(100 / WINDOW, abs=0.01)
    assert distinct_words(letters_of(" ".join(spam))) == pytest.approx(8 / WINDOW)


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
