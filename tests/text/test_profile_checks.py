from dataclasses import replace
from typing import Any

import pytest

from anadil.text.language_data import Profile
from anadil.text.ngram_profile import ASSOCIATED, count_table, pack_table
from anadil.text.profile_checks import check_profile, is_likely
from anadil.text.word_order import WordOrder, words_of
from anadil.text.word_shapes import (
    KNOWN,
    count_endings,
    pack_endings,
    score_endings,
    scores_of_endings,
    small_letters_of,
    unpack_endings,
)

WORDS = "kitab oxuyan uşaq bağda gəzir və ana ona baxır sonra evə gedib yemək bişirir ata işdən gec gəlir"
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
        ({"own": "é"}, "own: no table of n-grams: string argument"),
        ({"endings": "~~~~~"}, "endings: no table of n-grams: base85 overflow"),
        ({"endings": pack_table(count_table([WORDS]))}, "no table of n-grams: 8193 bytes, not 8192"),
        ({"word_order": "abc", "min_word_order": (0.0,)}, "word_order: no table of n-grams: .*; learn the pack again"),
        ({"associations": ("abc",), "min_associations": (0.0,)}, "no table of n-grams"),
        ({"associations": ("abc",) * 3, "min_associations": (0.0,)}, "no table of n-grams"),
        ({"associations": (TABLE,), "min_associations": (0.0,)}, "associations has 1 tables, not 3"),
        ({"min_chars": (), "min_likelihoods": (), "max_new_endings": ()}, r"min_chars are \(\), not ascending"),
        ({"min_chars": (0,)}, r"min_chars are \(0,\), not ascending numbers from 1"),
        ({"min_chars": (80, 40), "min_likelihoods": (0.0, 0.0), "max_new_endings": (0.9, 0.9)}, r"min_chars are \(80, 40\)"),
        ({"max_new_endings": (-0.1,)}, r"max_new_endings are \(-0.1,\), not shares from 0 to 1"),
        ({"max_new_endings": (30.0,)}, r"max_new_endings are \(30.0,\), not shares"),
        ({"max_new_endings": (0.1, 0.1)}, "max_new_endings has 2 values, min_chars 1"),
        ({"others": (TABLE,)}, "min_margins has 0 values, min_chars 1"),
        ({"min_likelihoods": ()}, "min_likelihoods has 0 values, min_chars 1"),
        ({"word_order": WordOrder.learn([words_of(WORDS)]).pack()}, "min_word_order has 0 values, min_chars 1"),
        ({"orders": ()}, r"orders are \(\), not of 1 to 8"),
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
