import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from anadil.text.byte_symbols import to_bytes, to_symbols
from anadil.tokenizer.alphabet import Alphabet, characters, scripts_of

LATIN = Alphabet({"LATIN"}, "λ")
USED = st.text("aəĞ .,5“’λ😀ₓ№–é\n", min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(text=USED, cut=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_every_piece_of_a_text_in_the_alphabet_may_be_a_token(text: str, cut: tuple[int, int]) -> None:
    piece = text.encode()[min(cut) : max(cut)]

    assert LATIN.spells(to_symbols(piece))


@pytest.mark.parametrize(
    "text", ["слово", " слово", "я", "漢字", "中", "한국", "שלום", "кafe", "का", "ไทย", "α", "。の", "٪"]
)
def test_a_token_with_a_letter_of_another_script_may_not(text: str) -> None:
    token = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]

    assert to_bytes(token).decode() == text
    assert not LATIN.spells(token)


@pytest.mark.parametrize(
    "text", [b"\xd0", b" \xd1", b"\xe4\xb8", b"\xec\x8a", b"\xff\xfe", b"a\x80\x80\x80\x80"]
)
def test_neither_may_the_beginning_of_such_a_letter_or_what_is_no_utf_8(text: bytes) -> None:
    assert not LATIN.spells(to_symbols(text))


def test_a_script_is_in_use_from_a_letter_in_a_thousand_on() -> None:
    words = [
        (to_symbols("söz".encode()), 1_000),
        (to_symbols("слово".encode()), 1),
        (to_symbols("日".encode()), 1),
    ]

    assert scripts_of(characters(words)) == {"LATIN", "CYRILLIC"}
