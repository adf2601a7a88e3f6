import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.text.language import load_language
from anadil.text.languages.ja import remove_footer, unify_punctuation

BODY = "本文はここにあります。二つ目の文もあります。\n三つ目の文は次の行にあります。"
FOOTER = ["コメント", "トラックバック一覧", "Copyright", "スポンサーリンク", "ランキング 一覧へ"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京は，日本の首都である．大阪は，西にある．", "東京は、日本の首都である。大阪は、西にある。"),
        ("東京は、日本の首都である。大阪は，西にある．", "東京は、日本の首都である。大阪は、西にある。"),
        ("円周率は３．１４で、Ｈｉ，と言う。", "円周率は３．１４で、Ｈｉ，と言う。"),
        ("円周率は３．１４で，終わり．（注），abc．", "円周率は３．１４で、終わり。（注）、abc。"),
        ("お待ちください．．．", "お待ちください。。。"),
        ("第１，第２は、ない。", "第１，第２は、ない。"),
    ],
)
def test_punctuation_has_one_style_but_for_full_width_numbers_and_names(text: str, expected: str) -> None:
    assert unify_punctuation(text) == expected


@pytest.mark.parametrize(
    "footer", [FOOTER, FOOTER[::-1], ["東京都港区一丁目", *FOOTER], ["Copyright 2024", "ABC商会", "PR"]]
)
def test_a_footer_goes_whatever_the_order_of_its_lines(footer: list[str]) -> None:
    kept = remove_footer("\n".join([BODY, *footer]))

    assert not {line for line in [*FOOTER, "Copyright 2024", "ABC商会", "PR"] if line in kept.split("\n")}
    assert kept.startswith(BODY)


def test_running_text_after_a_footer_line_stays() -> None:
    text = f"コメント\n{BODY}\n関連記事"

    assert remove_footer(text) == f"コメント\n{BODY}"


def test_a_line_that_mentions_a_footer_word_is_no_footer() -> None:
    text = f"{BODY}\nこの記事の著作権は筆者にあるが、引用の範囲であれば自由に使ってよいとされている。"

    assert remove_footer(text) == text


def test_a_footer_begins_in_the_last_ten_lines() -> None:
    text = "\n".join([BODY, "コメント", *(f"品目{number}" for number in range(10))])

    assert remove_footer(text) == text


@given(lines=st.lists(st.sampled_from([*FOOTER, BODY, "品目一", ""]), max_size=25))
def test_a_footer_that_was_cut_leaves_running_text_alone(lines: list[str]) -> None:
    cut = remove_footer("\n".join([BODY, *lines]))

    assert cut.count(BODY) == 1 + lines.count(BODY)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("細胞が10⁵個、砂糖は3½杯", "細胞が10⁵個、砂糖は3½杯"),
        ("５０㎡の部屋、２㎥の水", "50m²の部屋、2m³の水"),
        ("ｌｏｇ₂８、ｘⁿ、ﾊﾝｶｸ", "log₂8、xⁿ、ハンカク"),
    ],
)
def test_a_number_keeps_its_value_in_compatible_form(raw: str, expected: str) -> None:
    assert load_language("ja").normalize(raw) == expected
