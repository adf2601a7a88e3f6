import itertools
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.language import Profile
from anadil.text.ngram_profile import (
    ASSOCIATED,
    check_profile,
    count_endings,
    count_table,
    count_words,
    ending_buckets,
    is_likely,
    letters_of,
    pack_endings,
    pack_table,
    score_endings,
    score_words,
    small_letters_of,
    unpack_endings,
    unpack_table,
    word_buckets,
)

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


def test_a_word_and_a_pair_have_one_bucket_wherever_they_stand() -> None:
    (first, pairs), (second, other) = (word_buckets(letters_of(text)) for text in ("ev və bağ", "bağ, ev və"))

    assert first.tolist() == [*second[1:], second[0]]
    assert pairs[0] == other[1]
    assert len({*first.tolist()}) == 3
    assert [len(found) for found in word_buckets(letters_of("..."))] == [0, 0]


def test_too_few_pairs_of_frequent_words_say_nothing() -> None:
    tables = count_words([WORDS] * 50)

    assert math.isnan(score_words(letters_of(WORDS), tables))
    assert score_words(letters_of(f"{WORDS} {WORDS}"), tables) > -0.2
    assert score_words(letters_of(" ".join(sorted(f"{WORDS} {WORDS}".split()))), tables) < -1


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


def test_text_that_ends_its_words_as_no_text_of_the_sample_is_another_language() -> None:
    own, sibling = "evlər bağlar uşaqlar", "evden baglas usaqin"
    endings = count_endings([own, f"{own} evden", own.title()])
    profile = Profile(
        orders=(1,), own=pack_table(count_table([own], (1,))), min_chars=(10, 40), min_likelihoods=(-99.0,) * 2,
        endings=pack_endings(endings), max_new_endings=(0.9, 0.4),
    )  # fmt: skip

    assert (unpack_endings(profile.endings) == endings).all()
    assert score_endings(small_letters_of(own), endings) == 0
    assert score_endings(small_letters_of(sibling), endings) == 1  # one text alone ends a word in -vden
    assert is_likely(own * 3, profile)
    assert not is_likely(f"{sibling} " * 3, profile)
    assert not is_likely(f"{own} {sibling} " * 3, profile)
    assert is_likely(f"{own} {sibling}"[:30], profile)  # of short text more may be new
    assert is_likely(sibling.title(), profile)  # no word without a capital says nothing
    assert is_likely(
        f"{sibling} " * 3, replace(profile, endings="", max_new_endings=())
    )  # of an earlier release


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"own": "abc"}, "no table of n-grams"),
        ({"endings": pack_table(count_table([WORDS]))}, "no table of n-grams: 8193 bytes, not 8192"),
        ({"others": (pack_table(count_table([WORDS])),)}, "min_margins has 0 values, min_chars 1"),
        ({"min_likelihoods": ()}, "min_likelihoods has 0 values, min_chars 1"),
        ({"max_new_endings": (0.1, 0.1)}, "max_new_endings has 2 values, min_chars 1"),
        ({"words": (pack_table(count_table([WORDS])),), "min_words": (0.0,)}, "words has 1 tables, not 2"),
        ({"associations": ("abc",) * 3, "min_associations": (0.0,)}, "no table of n-grams"),
        ({"orders": ()}, r"orders are \(\), not of 1 to 8"),
        ({"orders": (2, 9)}, r"orders are \(2, 9\), not of 1 to 8"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused(wrong: dict[str, Any], told: str) -> None:
    profile = Profile(
        orders=(1,), own=pack_table(count_table([WORDS], (1,))), min_chars=(10,), min_likelihoods=(-99.0,),
        endings=pack_endings(count_endings([WORDS])), max_new_endings=(0.9,),
    )  # fmt: skip
    check_profile(profile)

    with pytest.raises(ValueError, match=told):
        check_profile(replace(profile, **wrong))


@pytest.mark.parametrize("packed", ["", "no table", pack_table(count_table([WORDS]))[:60]])
def test_what_is_no_table_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match=r"no table of n-grams|invalid|base85"):
        unpack_table(packed)
