"""A new vocabulary keeps combining marks with their letters, whatever the base cuts by."""

import unicodedata
from collections import Counter

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from anadil.text.cut_patterns import LLAMA_3_REGEX, QWEN_3_5_REGEX, QWEN_REGEX, known_pattern
from anadil.tokenizer.makers import cuts_at_marks, mark_share, recut_base
from tests.kit.pre_tokenizers import tokenizer_of

BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
GPT_2 = ByteLevel(add_prefix_space=False)
CL100K = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
BASES = {
    "gpt2": GPT_2,
    "smollm": Sequence([Digits(individual_digits=True), GPT_2]),
    "llama": Sequence([Split(Regex(LLAMA_3_REGEX), "isolated"), BYTES]),
    "qwen": Sequence([Split(Regex(QWEN_REGEX), "isolated"), BYTES]),
    "another": Sequence([Split(Regex(CL100K), "isolated"), BYTES]),
}
WORDS = {
    "ml": "മലയാളത്തിൽ എഴുതുന്നു",
    "th": "ภาษาไทยที่นี่",
    "my": "မြန်မာဘာသာ",
    "km": "ភាសាខ្មែរ",
    "ar": "العَرَبِيَّةُ لُغَةٌ",
    "he": "בְּרֵאשִׁית בָּרָא",
    "yo": unicodedata.normalize("NFD", "ọ̀rọ̀ Yorùbá"),
}


def pieces(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("language", WORDS)
def test_a_word_with_marks_is_one_piece(base: str, language: str) -> None:
    tokenizer, text = tokenizer_of(BASES[base]), WORDS[language]

    recut = recut_base(tokenizer, has_marks=True)

    assert pieces(recut, text) == len(text.split()) < pieces(tokenizer, text)
    assert known_pattern(recut_content(recut)) == QWEN_3_5_REGEX


def recut_content(tokenizer: Tokenizer) -> dict[str, object]:
    import json

    content: dict[str, object] = json.loads(tokenizer.to_str())["pre_tokenizer"]
    return content


def test_text_without_marks_is_cut_as_by_qwen() -> None:
    text = "Bakıda 2024-cü ildə \t 'yeni' kitab'ın\r\n  3 nəşri…  ABC's!\n"
    ours = recut_base(tokenizer_of(GPT_2), has_marks=True)

    assert ours.pre_tokenizer.pre_tokenize_str(text) == BASES["qwen"].pre_tokenize_str(text)


def test_a_language_without_marks_keeps_the_expression_that_it_had() -> None:
    base = tokenizer_of(BASES["llama"])

    assert recut_base(base) is base
    assert known_pattern(recut_content(recut_base(tokenizer_of(GPT_2)))) == LLAMA_3_REGEX


def test_a_base_that_keeps_marks_together_is_left_as_it_is() -> None:
    base = tokenizer_of(Sequence([Split(Regex(r" ?[^\s]+|\s+"), "isolated"), BYTES]))

    assert not cuts_at_marks(base)
    assert recut_base(base, has_marks=True) is base


def test_marks_are_counted_among_letters_and_marks() -> None:
    assert mark_share(Counter("ab12 !")) == 0
    assert mark_share(Counter("कि")) == 0.5
    assert mark_share(Counter()) == 0
