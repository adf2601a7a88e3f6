"""Where the suffixes of a word begin."""

import pytest

from anadil.text.language import load_language
from anadil.text.suffixes import suffix_borders

STEMS = {"kitab", "kitablar", "şəhər", "ev", "evlərdə", "müəllim", "evler", "kitapçı", "kitap"}


def cut(word: str, code: str = "az") -> str:
    language = load_language(code)
    borders = sorted(
        suffix_borders(language.fold(word), language.suffixes, {language.fold(each) for each in STEMS})
    )
    return "|".join(word[start:end] for start, end in zip([0, *borders], [*borders, len(word)], strict=True))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("kitablardan", "kitab|lar|dan"),
        ("Kitabları", "kitab|lar|ı"),
        ("şəhərlərindən", "şəhər|lər|i|ndən"),
        ("müəllimsizlik", "müəllim|siz|lik"),
        # Neither a stem that the text does not hold nor an end that is no suffix.
        ("dəftərdən", "dəftərdən"),
        ("kitabxana", "kitabxana"),
        # Two letters are no stem.
        ("evlər", "evlər"),
    ],
)
def test_suffixes_follow_a_stem_that_the_text_holds(word: str, expected: str) -> None:
    assert cut(word).lower() == expected


def test_every_language_with_vowel_harmony_has_its_own() -> None:
    assert cut("kitapçılardan", "tr") == "kitap|çı|lar|dan"
    assert load_language("en").suffixes == frozenset()
