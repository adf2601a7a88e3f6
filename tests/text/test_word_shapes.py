import itertools
import math
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.language_data import Profile
from anadil.text.ngram_profile import (
    ASSOCIATED,
    codes_of,
    count_table,
    letters_of,
    pack,
    pack_table,
    unpack_table,
    word_buckets,
)
from anadil.text.profile_checks import check_profile, is_likely
from anadil.text.word_shapes import (
    KNOWN,
    MIN_PAIRS,
    NUM_CLASSES,
    SIZE,
    WINDOW,
    WordOrder,
    count_endings,
    distinct_words,
    ending_buckets,
    inner_capitals,
    inner_signs,
    pack_endings,
    score_endings,
    scores_of_endings,
    small_letters_of,
    unpack_endings,
    words_of,
)
from tests.kit.constructed import documents


@pytest.mark.parametrize(
    ("text", "num_signs"),
    [
        ("Bu gün, saat 12:30-da görüşdük.", 0),  # signs beside words and figures
        ("k1tab oxu~yan uş|ql4r", 4),
        ("ata-ana O'nun f(x) a.b@c/d", 0),
        ("प्रयोग करने", 0),  # signs of vowels are letters
        ("日本語。「日本語」、日本", 0),  # no blank behind a full stop
        ("མི་རིགས་ Ի՞նչ שני־ה", 0),  # signs of other scripts within words
        ("", 0),
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
        ("किताबें पढ़ो।", " किताबें पढ़ो "),
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


@pytest.fixture(scope="module")
def order() -> WordOrder:
    return WordOrder.learn(words_of(letters_of(text)) for text in documents(200))


def test_running_text_has_neighbours_that_chance_has_not_and_shuffled_text_has_none(order: WordOrder) -> None:
    draw = random.Random(1)
    own = [letters_of(text).split() for text in documents(60, seed=1)]

    running, shuffled = (
        [order.score(" ".join(words)) for words in texts]
        for texts in (own, [draw.sample(words, len(words)) for words in own])
    )

    assert min(running) > np.quantile(shuffled, 0.9)
    assert np.median(shuffled) < 0


def test_several_pieces_have_the_scores_that_each_has_alone(order: WordOrder) -> None:
    text = letters_of(" ".join(documents(40, seed=4)))
    pieces = ["", *(text[start : start + 300] for start in range(0, len(text) - 300, 300)), "bir"]

    together = order.scores(pieces)

    assert np.array_equal(together, [order.score(each) for each in pieces], equal_nan=True)
    assert len(set(together)) > 20


def test_words_that_the_sample_lacks_are_of_the_class_of_their_last_letters() -> None:
    draw = random.Random(1)

    def sentences(count: int) -> list[str]:
        """New words all the time, the ending of each told by the word before it."""
        ends = ["lar", "nda", "mek", "dir"] * count
        return [f"{''.join(draw.choices('bcdfgaeou', k=6))}{end}" for end in ends]

    order = WordOrder.learn(words_of(letters_of(" ".join(sentences(40)))) for _ in range(40))
    words = sentences(40)

    assert order.score(letters_of(" ".join(words))) > 1
    assert order.score(letters_of(" ".join(draw.sample(words, len(words))))) < 0


def test_too_few_neighbours_say_nothing(order: WordOrder) -> None:
    words = letters_of(" ".join(documents(1, seed=3))).split()

    assert math.isnan(order.score(""))
    assert math.isnan(order.score(" ".join(words[:MIN_PAIRS])))
    assert not math.isnan(order.score(" ".join(words[: 2 * MIN_PAIRS])))
    assert math.isnan(order.score(letters_of("日本 " * 99)))  # no word of a class


def test_a_packed_order_is_the_same_and_what_is_none_is_refused(order: WordOrder) -> None:
    packed = order.pack()
    again = WordOrder.unpack(packed)

    assert (again.numbers == order.numbers).all()
    assert (again.associations == order.associations).all()
    assert again.pack() == packed
    assert order.numbers.max() == NUM_CLASSES - 1
    with pytest.raises(ValueError, match=f"no table of n-grams: 3 bytes, not {SIZE}"):
        WordOrder.unpack(pack(b"abc"))


def test_a_sample_of_few_words_has_few_classes_and_of_none_no_order() -> None:
    few, none = WordOrder.learn([words_of(letters_of("bir iki üç bir iki"))]), WordOrder.learn([])

    assert few.numbers.max() < NUM_CLASSES - 1
    assert not none.numbers.any()
    assert math.isnan(none.score(letters_of("bir iki " * 20)))


WORDS = "kitab oxuyan uşaq bağda gəzir və ana ona baxır sonra evə gedib yemək bişirir ata işdən gec gəlir"


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Kitab, 12 qələm_və  dəftər!", " kitab qələm və dəftər "),
        ("किताबें पढ़ो।", " किताबें पढ़ो "),
        ("מִלָּה", " מלה "),
        ("ภาษาไทยก็ดี", " ภาษาไทยก็ดี "),
        ("...", "  "),
        ("", "  "),
    ],
)
def test_marks_belong_to_their_letters_and_points_that_may_be_left_out_are(text: str, letters: str) -> None:
    assert letters_of(text).strip() == letters.strip()
    assert letters_of(text).startswith(" ")
    assert letters_of(text).endswith(" ")


@given(st.text())
def test_packs_without_associations_are_compared_with_letters_as_they_were_made(text: str) -> None:
    before = " " + re.sub(r"[\W\d_]+", " ", text.lower()).strip() + " "

    assert letters_of(text, marks=False).split() == before.split()


def test_a_word_has_one_bucket_wherever_it_stands() -> None:
    first, second = (word_buckets(letters_of(text)).tolist() for text in ("ev və bağ", "bağ, ev və"))

    assert first == [*second[1:], second[0]]
    assert len({*first}) == 3
    assert len(word_buckets(letters_of("..."))) == 0


@pytest.mark.parametrize("packed", ["", "no table", pack_table(count_table([WORDS]))[:60]])
def test_what_is_no_table_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match=r"no table of n-grams|invalid|base85"):
        unpack_table(packed)


TABLE = pack_table(count_table([WORDS]))


def test_likely_letters_that_never_stand_together_are_damage() -> None:
    texts = [WORDS] * 50
    own, *associated = (
        count_table(texts, orders) for orders in ((2, 3, 4), *((each,) for each in ASSOCIATED))
    )
    likely = Profile(
        orders=(2, 3, 4), own=pack_table(own), others=(), min_chars=(10,), min_likelihoods=(-99.0,)
    )
    associating = replace(likely, associations=tuple(map(pack_table, associated)), min_associations=(-0.5,))

    assert is_likely(WORDS, associating)
    assert is_likely(WORDS[::-1], likely)
    assert not is_likely(WORDS[::-1], associating)


def test_text_that_ends_its_words_as_no_text_of_the_sample_is_another_language() -> None:
    own, sibling = "evlər bağlar uşaqlar", "evden baglas usaqin"
    endings = count_endings([own, f"{own} evden", own.title()]) >= KNOWN
    profile = Profile(
        orders=(1,), own=pack_table(count_table([own], (1,))), min_chars=(10, 40), min_likelihoods=(-99.0,) * 2,
        endings=pack_endings(endings), max_new_endings=(0.9, 0.4),
    )  # fmt: skip

    assert (unpack_endings(profile.endings) == endings).all()
    assert score_endings(small_letters_of(own), endings) == 0
    assert score_endings(small_letters_of(sibling), endings) == 1  # one text alone ends a word in -vden
    # A piece may begin or end amid a word, or be of one.
    pieces = ["", "evden", "lar evden evl", small_letters_of(own), f" {sibling}"]
    assert [*scores_of_endings(pieces, endings)] == [score_endings(each, endings) for each in pieces]
    assert is_likely(own * 3, profile)
    assert not is_likely(f"{sibling} " * 3, profile)
    assert not is_likely(f"{own} {sibling} " * 3, profile)
    assert is_likely(f"{own} {sibling}"[:30], profile)  # of short text more may be new
    assert is_likely(sibling.title(), profile)  # no word without a capital says nothing
    assert is_likely(
        f"{sibling} " * 3, replace(profile, endings="", max_new_endings=())
    )  # of an earlier release


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"own": "abc"}, "own: no table of n-grams: .*; learn the pack again"),
        ({"endings": "~~~~~"}, "endings: no table of n-grams: base85 overflow"),
        ({"endings": pack_table(count_table([WORDS]))}, "no table of n-grams: 8193 bytes, not 8192"),
        ({"word_order": "abc", "min_word_order": (0.0,)}, "word_order: no table of n-grams: .*; learn the pack again"),
        ({"associations": ("abc",), "min_associations": (0.0,)}, "no table of n-grams"),
        ({"associations": (TABLE,), "min_associations": (0.0,)}, "associations has 1 tables, not 3"),
        ({"min_chars": (), "min_likelihoods": (), "max_new_endings": ()}, r"min_chars are \(\), not ascending"),
        ({"min_chars": (80, 40), "min_likelihoods": (0.0, 0.0), "max_new_endings": (0.9, 0.9)}, r"min_chars are \(80, 40\)"),
        ({"max_new_endings": (-0.1,)}, r"max_new_endings are \(-0.1,\), not shares from 0 to 1"),
        ({"others": (TABLE,)}, "min_margins has 0 values, min_chars 1"),
        ({"word_order": WordOrder.learn([words_of(WORDS)]).pack()}, "min_word_order has 0 values, min_chars 1"),
        ({"orders": (2, 9)}, r"orders are \(2, 9\), not of 1 to 8"),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_be_used_is_refused(wrong: dict[str, Any], message: str) -> None:
    profile = Profile(
        orders=(1,), own=pack_table(count_table([WORDS], (1,))), min_chars=(10,), min_likelihoods=(-99.0,),
        endings=pack_endings(count_endings([WORDS]) >= KNOWN), max_new_endings=(0.9,),
    )  # fmt: skip
    check_profile(profile)

    with pytest.raises(ValueError, match=message):
        check_profile(replace(profile, **wrong))
