import json
import os
import random
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from anadil.core.errors import DataError
from anadil.text.cut_patterns import LLAMA_3_REGEX, QWEN_3_5_REGEX, QWEN_REGEX, known_pattern
from anadil.tokenizer import pretokens
from anadil.tokenizer.pretokens import count_by_library, count_texts, require_words
from tests.kit import texts
from tests.kit.marks import matrix, slow
from tests.kit.pre_tokenizers import tokenizer_of

DATA = os.environ.get("ANADIL_DATA", "")
EVERY_CHARACTER = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
EDGES = "'''sStTmMdDrReEvVlLſK  \n\r\t\u3000\u180e\x85\u2028\x1c\x00\u200b a1ə5²½٣٤٥_.,!-中日🙂é\u0301\u093f\u0941"


def cut_by(pattern: str, behavior: str = "isolated", *, invert: bool = False) -> Tokenizer:
    split = Split(Regex(pattern), behavior, invert)
    return tokenizer_of(Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)]))


FAMILIES = {
    "llama": cut_by(LLAMA_3_REGEX),
    "qwen": cut_by(QWEN_REGEX),
    "qwen35": cut_by(QWEN_3_5_REGEX),
    "gpt2": tokenizer_of(ByteLevel(add_prefix_space=False)),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def assert_cut_as_by_the_library(family: str, some: list[str]) -> None:
    found, expected = count_texts(FAMILIES[family], some), count_by_library(FAMILIES[family], some)

    assert list(found.items()) == list(expected.items())
    assert found.records == expected.records


def test_pretokens_are_counted_in_byte_symbols_as_the_base_cuts_them(tiny: Tokenizer) -> None:
    found = count_texts(tiny, ["ev ev 2024", "ev"])

    assert dict(found.items()) == {"ev": 2, "Ġev": 1, "Ġ": 1, "202": 1, "4": 1}
    assert found.records["train_documents"] == 2


@each_family
def test_text_of_the_kit_is_cut_as_by_the_library(family: str) -> None:
    several = [getattr(texts, name) for name in dir(texts) if name.isupper()]

    assert_cut_as_by_the_library(family, several)


@each_family
def test_random_strings_of_all_planes_are_cut_as_by_the_library(family: str) -> None:
    rng = random.Random(16)
    planes = ["".join(map(chr, rng.choices(EVERY_CHARACTER, k=rng.randint(1, 60)))) for _ in range(1_000)]
    edges = ["".join(rng.choices(EDGES, k=rng.randint(1, 40))) for _ in range(3_000)]

    assert_cut_as_by_the_library(family, planes + edges + ["", " ", "\n", "'", "'s", "'ſ"])


@each_family
@pytest.mark.parametrize("every", [slow(17), matrix(1)])
def test_characters_after_an_apostrophe_are_cut_as_by_the_library(family: str, every: int) -> None:
    some = [code for code in EVERY_CHARACTER if code < 0x3000 or code % every == 0]
    assert_cut_as_by_the_library(family, [f"x\n'{chr(code)}e{chr(code)}" for code in some])


@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with az/, ja/ and en/")
@each_family
@pytest.mark.parametrize(
    ("language", "every"),
    [
        slow("az", 5),
        slow("ja", 5),
        matrix("en", 5),
        *(matrix(language, 1) for language in ("az", "ja", "en")),
    ],
)
def test_real_text_is_cut_as_by_the_library(family: str, language: str, every: int) -> None:
    files = sorted((Path(DATA) / language).glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()][::every]

    assert_cut_as_by_the_library(family, [json.loads(line)["text"] for line in lines])


@pytest.mark.parametrize(
    "tokenizer",
    [
        cut_by(LLAMA_3_REGEX, "removed"),
        cut_by(LLAMA_3_REGEX, invert=True),
        cut_by(r"\p{Lu}?\p{Ll}+|\s+|."),
        tokenizer_of(ByteLevel(add_prefix_space=True)),
        tokenizer_of(Sequence([Split(Regex(LLAMA_3_REGEX), "isolated"), ByteLevel(add_prefix_space=False)])),
        tokenizer_of(ByteLevel(add_prefix_space=False, use_regex=False)),
    ],
)
def test_any_other_pre_tokenizer_cuts_itself(tokenizer: Tokenizer) -> None:
    several = [texts.ENGLISH, texts.AZERBAIJANI]

    table = count_texts(tokenizer, several)

    assert known_pattern(json.loads(tokenizer.to_str())["pre_tokenizer"]) is None
    assert list(table.items()) == list(count_by_library(tokenizer, several).items())


def test_a_normalizer_comes_first() -> None:
    tokenizer = cut_by(QWEN_REGEX)
    tokenizer.normalizer = normalizers.NFC()

    assert list(count_texts(tokenizer, ["e\u0301v"]).items()) == [("Ã©v", 1)]


def test_tables_grow_with_the_text(monkeypatch: pytest.MonkeyPatch, tiny: Tokenizer) -> None:
    rng = random.Random(2)
    several = ["".join(rng.choices("abcdef 1\n", k=2_000)) for _ in range(20)]
    expected = list(count_texts(tiny, several).items())

    monkeypatch.setattr(pretokens, "ROOM", 64)
    monkeypatch.setattr(pretokens, "BATCH_CHARS", 3_000)

    assert list(count_texts(tiny, several).items()) == expected
    assert len(expected) > 64


def test_pretokens_over_256_bytes_are_dropped_and_counted(
    tiny: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    found = count_texts(tiny, ["x" * 257 + " kitab " + "ə" * 128, "x" * 257])
    require_words(found)

    assert [pretoken for pretoken, _ in found.items()] == ["Ġkitab"]
    assert found.records["dropped_pretokens"] == 3
    assert "left out 3 pretokens of more than 256 bytes" in caplog.text


def test_a_corpus_without_words_is_a_data_error(tiny: Tokenizer) -> None:
    with pytest.raises(DataError, match="the 1 train documents hold no words of at most 256 bytes"):
        require_words(count_texts(tiny, ["x" * 1_000_000]))


def test_a_corpus_of_one_document_or_of_one_word_is_counted(tiny: Tokenizer) -> None:
    assert dict(count_texts(tiny, ["kitab"]).items()) == {"kitab": 1}
    many = count_texts(tiny, ["kitab" + " kitab" * 99_999])
    assert dict(many.items()) == {"kitab": 1, "Ġkitab": 99_999}
