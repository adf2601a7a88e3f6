import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.ngram_profile import count_table, letters_of, pack_table, unpack_table, word_buckets

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
