"""A new vocabulary keeps combining marks with their letters, whatever the base cuts by."""

import json
import logging
import unicodedata
from collections import Counter

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from anadil.recipe.sections import Tokenizer as Settings
from anadil.text.cut_patterns import LLAMA_3_REGEX, QWEN_3_5_REGEX, QWEN_REGEX, SYMBOLS, known_pattern
from anadil.tokenizer.candidate import embedding_rows
from anadil.tokenizer.makers import MAKERS, cuts_at_marks, mark_share, recut_base
from anadil.tokenizer.pretokens import count_texts
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


def pattern_of(tokenizer: Tokenizer) -> str | None:
    return known_pattern(json.loads(tokenizer.to_str())["pre_tokenizer"])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("language", WORDS)
def test_a_word_with_marks_is_one_piece(base: str, language: str) -> None:
    tokenizer, text = tokenizer_of(BASES[base]), WORDS[language]

    recut = recut_base(tokenizer, has_marks=True)

    assert pieces(recut, text) == len(text.split()) < pieces(tokenizer, text)
    assert pattern_of(recut) == QWEN_3_5_REGEX


def test_text_without_marks_is_cut_as_by_qwen() -> None:
    text = "Bakıda 2024-cü ildə \t 'yeni' kitab'ın\r\n  3 nəşri…  ABC's!\n"
    ours = recut_base(tokenizer_of(GPT_2), has_marks=True)

    assert ours.pre_tokenizer.pre_tokenize_str(text) == BASES["qwen"].pre_tokenize_str(text)


def test_a_base_that_keeps_marks_together_or_sees_none_is_left_as_it_is() -> None:
    llama = tokenizer_of(BASES["llama"])
    assert recut_base(llama) is llama
    assert pattern_of(recut_base(tokenizer_of(GPT_2))) == LLAMA_3_REGEX
    base = tokenizer_of(Sequence([Split(Regex(r" ?[^\s]+|\s+"), "isolated"), BYTES]))

    assert not cuts_at_marks(base)
    assert recut_base(base, has_marks=True) is base


def test_marks_are_counted_among_letters_and_marks() -> None:
    assert mark_share(Counter("ab12 !")) == 0
    assert mark_share(Counter("कि")) == 0.5
    assert mark_share(Counter()) == 0


ENGLISH = "The river had not been so high since the bridge was built, said the newspapers."
RUSSIAN = "Мы долго шли вдоль реки и говорили о том, что видели на ярмарке в городе."
KURDISH = ("Ez li gundê me mezin bûm.", "Dayika min her roj nan çêdike.", "Em ê sibê herin bajêr.")
LACKED = (0x13, 0xAA, 0xC3, 0xF1, 0xFE)
"""Two of them are in the two bytes of the Kurdish circumflex e."""


@pytest.fixture(scope="module", params=[None, "<unk>"], ids=["lost", "unknown"])
def base(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=request.param))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=[symbol for byte, symbol in enumerate(SYMBOLS) if byte not in LACKED],
        special_tokens=["<unk>"] if request.param else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator([ENGLISH, RUSSIAN] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return tokenizer


@pytest.mark.parametrize("strategy", ["extend", "surgery", "replace"])
def test_bytes_that_the_base_lacks_become_tokens_of_a_candidate(
    base: Tokenizer, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate({"min_uses": 1, "strategies": [strategy]})
    counts = count_texts(base, KURDISH * 3)
    size = 400 if strategy == "replace" else 20

    with caplog.at_level(logging.INFO):
        (candidate,) = MAKERS[strategy](base, counts, (size,), settings, {})  # type: ignore[index]

    made = candidate.tokenizer
    if strategy == "extend":
        assert "lacks 5 of the 256 bytes, which become tokens: 13 aa c3 f1 fe" in caplog.text
        assert made.get_vocab().items() >= base.get_vocab().items()
        assert candidate.vocab_size == len(base.get_vocab()) + len(LACKED) + candidate.got
    for text in (*KURDISH, "\x13", "\U00040000", ENGLISH):
        assert made.decode(made.encode(text, add_special_tokens=False).ids) == text
    assert base.decode(base.encode(KURDISH[0]).ids) != KURDISH[0]
    new = [token for token in made.get_vocab() if SYMBOLS[0xC3] in token and len(token) > 1]
    assert new, "merges go on over the bytes that were missing"
    rows = embedding_rows(base, made)
    old, ids = base.get_vocab(), made.get_vocab()
    known = sorted(old[symbol] for byte, symbol in enumerate(SYMBOLS) if byte not in LACKED)
    for byte in LACKED:
        assert sorted(rows[ids[SYMBOLS[byte]]]) == known
    unknown = base.token_to_id("<unk>")
    assert all(unknown not in rows[ids[token]] for token in new)
