import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.ngram_profile import (
    count_table,
    count_words,
    letters_of,
    pack_table,
    score_words,
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


@pytest.mark.parametrize("packed", ["", "no table", pack_table(count_table([WORDS]))[:60]])
def test_what_is_no_table_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match=r"no table of n-grams|invalid|base85"):
        unpack_table(packed)
