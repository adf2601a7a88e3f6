import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from anadil.core.errors import DataError, IntegrityError
from anadil.text.cut_patterns import (
    ALPHABET,
    LLAMA_3_REGEX,
    QWEN_3_5_REGEX,
    QWEN_REGEX,
    SYMBOLS,
    known_pattern,
    to_text,
)
from anadil.tokenizer import bpe, pretokens
from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.pretokens import count_by_library, count_texts, require_words
from anadil.tokenizer.word_counts import (
    WordCounts,
    of_bytes,
    read_counts,
    sum_counts,
    word_counts,
    write_counts,
)
from tests.kit import texts
from tests.kit.marks import matrix, slow
from tests.kit.pre_tokenizers import tokenizer_of
from tests.kit.reference_bpe import library_merges, plain_merges
from tests.tokenizer.conftest import SENTENCES

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
@pytest.mark.parametrize("every", [slow(97), matrix(1)])
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


COUNTS = {"kitab": 3, "Ġkitab": 2**40, "ÉĻ": 1, "": 4}


def random_counts(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    words = ("".join(rng.choices(SYMBOLS[:4], k=rng.randint(1, 5))) for _ in range(300))
    return {word: rng.randint(1, 2**40) for word in words}


def file_of(table: WordCounts, path: Path) -> bytes:
    write_counts(table, path)
    return path.read_bytes()


def test_byte_symbols_are_those_of_the_library() -> None:
    text = "".join(chr(code) for code in range(256))
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)

    assert set(SYMBOLS) == set(ByteLevel.alphabet())
    assert "".join(piece for piece, _ in pieces) == "".join(SYMBOLS[byte] for byte in text.encode())
    assert [to_text(each) for each in ("ÃĸlkÉĻ", "Ġbu", "Ã")] == ["Ölkə", " bu", "\ufffd"]


def test_a_table_gives_back_its_pretokens_sorted_by_their_bytes() -> None:
    table = word_counts([*COUNTS.items(), ("ev", 1), ("ev", 2)])

    assert list(table.items()) == [("", 4), ("Ġkitab", 2**40), ("ev", 3), ("kitab", 3), ("ÉĻ", 1)]
    assert (len(table), table.total) == (5, 2**40 + 11)


def test_a_file_gives_back_the_table(tmp_path: Path) -> None:
    write_counts(of_bytes({b"ev": 2, b"\xc9\x99": 2**50}, {"documents": 7}), tmp_path / "counts")

    table = read_counts(tmp_path / "counts")

    assert list(table.items()) == [("ev", 2), ("ÉĻ", 2**50)]
    assert table.records == {"documents": 7}


def test_no_table_at_all_is_an_empty_one(tmp_path: Path) -> None:
    write_counts(sum_counts([]), tmp_path / "empty")

    table = read_counts(tmp_path / "empty")

    assert len(table) == table.total == 0
    assert list(table.items()) == []


def test_tables_are_added_up_whatever_their_order(tmp_path: Path) -> None:
    parts = [random_counts(seed) for seed in range(4)]
    expected = Counter[str]()
    for part in parts:
        expected.update(part)

    tables = [word_counts(part.items()) for part in parts]

    results = {file_of(sum_counts(order), tmp_path / "sum") for order in permutations(tables)}
    assert len(results) == 1
    assert dict(read_counts(tmp_path / "sum").items()) == expected


def test_rare_pretokens_can_be_left_out() -> None:
    table = word_counts(COUNTS.items()).pruned(3)

    assert dict(table.items()) == {"": 4, "kitab": 3, "Ġkitab": 2**40}


@pytest.mark.parametrize("place", range(0, 190, 7))
def test_a_file_with_any_byte_changed_is_refused(tmp_path: Path, place: int) -> None:
    path = tmp_path / "counts"
    content = bytearray(file_of(word_counts(COUNTS.items()), path))
    content[place] ^= 1
    path.write_bytes(content)

    with pytest.raises(IntegrityError, match="word counts"):
        read_counts(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda _: b"",
        lambda _: b"\x00\xff" * 50_000,
    ],
)
def test_a_file_of_another_length_or_program_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "counts"
    path.write_bytes(change(file_of(word_counts(COUNTS.items()), path)))

    with pytest.raises(IntegrityError, match="word counts"):
        read_counts(path)


USE = """

from tokenizers import Tokenizer
from tokenizers.models import BPE
from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.tokenizer.bpe import continue_merges
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.bpe import train_vocabulary
from anadil.tokenizer.word_counts import read_counts, sum_counts, write_counts
from anadil.recipe.sections import Base
from pathlib import Path
import sys

base = read_tokenizer(base_tokenizer(Base(model="tiny"), Path(sys.argv[1])))
tables = [count_texts(base, [f"kitab {number} {number + letter} ev" for number in range(60_000)]) for letter in (1, 2)]
write_counts(sum_counts(tables), Path(sys.argv[1]) / "counts")
table = read_counts(Path(sys.argv[1]) / "counts").pruned(2)
train_vocabulary(table, 3_000, 2)
continue_merges(base, table, 500, 2)
continue_merges(base, {"kitab": 3, "kitablar": 3}, 500, 2, lambda token: False)
"""


@pytest.mark.matrix
def test_after_warming_nothing_is_compiled(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    subprocess.run([sys.executable, "-m", "anadil.tokenizer.warm_kernels"], check=True, env=environment)
    warm = compiled_code(tmp_path)
    subprocess.run([sys.executable, "-c", USE, tmp_path], check=True, env=environment)

    assert warm
    assert compiled_code(tmp_path) == warm


def compiled_code(folder: Path) -> set[str]:
    return {file.name for file in (folder / "compiled").rglob("*.nbc")}


AZERBAIJANI = [texts.AZERBAIJANI, texts.ANOTHER]
JAPANESE = [texts.JAPANESE, texts.MORE_JAPANESE]
MIXED = [*AZERBAIJANI, *JAPANESE, texts.ENGLISH, texts.RUSSIAN, texts.TURKISH]


def random_table(rng: random.Random, letters: str) -> dict[str, int]:
    words = ("".join(rng.choices(letters, k=rng.randint(1, 20))) for _ in range(rng.randint(1, 30)))
    return {word: rng.randint(1, 9) for word in words}


@pytest.mark.parametrize("corpus", [AZERBAIJANI, JAPANESE, MIXED])
@pytest.mark.parametrize("num_tokens", [300, 500, 2_000])
def test_merges_are_those_of_the_library_for_the_same_pretokens(
    tiny: Tokenizer, corpus: list[str], num_tokens: int
) -> None:
    counts = count_texts(tiny, corpus)

    merges = train_vocabulary(counts, num_tokens, min_frequency=2).merges

    assert merges == library_merges(dict(counts.items()), num_tokens, 2)


@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with az/, ja/ and en/")
@pytest.mark.parametrize(
    ("languages", "every"),
    [
        slow(["az", "en", "ja", "ru", "tr"], 30),
        *(matrix(languages, 1) for languages in (["az"], ["ja"], ["az", "en", "ja", "ru", "tr"])),
    ],
)
def test_merges_are_those_of_the_library_on_real_text(
    tiny: Tokenizer, languages: list[str], every: int
) -> None:
    files = [file for language in languages for file in sorted((Path(DATA) / language).glob("*.jsonl"))]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()][::every]
    counts = count_texts(tiny, (json.loads(line)["text"] for line in lines))

    for num_tokens, min_frequency in ((2_000, 2), (16_000, 2), (100_000, 1)):
        merges = train_vocabulary(counts, num_tokens, min_frequency).merges
        assert merges == library_merges(dict(counts.items()), num_tokens, min_frequency)


@pytest.mark.parametrize("letters", ["a", "ab", "abc", "abcdefgh"])
def test_merges_are_those_of_counting_all_pairs_again_after_each(letters: str) -> None:
    rng = random.Random(letters)
    for _ in range(25):
        counts = random_table(rng, letters)
        trained = train_vocabulary(counts, 256 + 40, min_frequency=1)

        vocab = {symbol: index for index, symbol in enumerate(ALPHABET)}
        assert trained.merges == plain_merges(
            {tuple(word): count for word, count in counts.items()}, vocab, 40, 1
        )
        tokens = [left + right for left, right in trained.merges]
        assert len(set(tokens)) == len(tokens), "begun at bytes, no token is made in two ways"


@pytest.mark.parametrize("is_banned", [lambda _: False, lambda token: "ab" in token or len(token) > 6])
def test_merges_go_on_from_a_vocabulary_and_pass_over_what_it_has_and_what_is_banned(
    is_banned: object,
) -> None:
    assert callable(is_banned)
    rng = random.Random(3)
    for _ in range(25):
        base = train_vocabulary(random_table(rng, "abcd"), 256 + rng.randint(1, 20), min_frequency=1)
        vocab, merges = base.cut(10_000)
        tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
        counts = random_table(rng, "abcd")
        words = {tuple(token.value for token in tokenizer.model.tokenize(word)): word for word in counts}
        weighted = {tokens: counts[word] for tokens, word in words.items()}

        added = continue_merges(tokenizer, counts, 30, 2, is_banned)

        assert added == plain_merges(weighted, vocab, 30, 2, is_banned)
        assert not {left + right for left, right in added} & vocab.keys()


def test_a_pair_counted_more_often_than_32_bits_hold_is_merged_first() -> None:
    trained = train_vocabulary({"ÉĻ": 2**62, "ab": 1_000}, 257, min_frequency=2)

    assert trained.merges == [("É", "Ļ")]
    assert trained.cut(257)[0]["ÉĻ"] == 256


def test_a_pretoken_of_a_megabyte_takes_no_longer_than_short_ones() -> None:
    rng = random.Random(5)
    letters = "".join(rng.choices("abcdefgh", k=1_000_000))
    counts = {letters: 100, "ab" * 500_000: 1}

    trained = train_vocabulary(counts, 3_000, min_frequency=2)

    assert len(trained.merges) == 3_000 - 256
    assert trained.cut(270)[1] == train_vocabulary(counts, 270, min_frequency=2).merges


def test_no_pair_rarer_than_the_least_or_beyond_the_room_is_merged(tiny: Tokenizer) -> None:
    counts = {"abc": 5, "xy": 4, "z": 100}

    assert train_vocabulary(counts, 300, min_frequency=5).merges == [("a", "b"), ("ab", "c")]
    assert train_vocabulary({"z": 100, "": 3}, 300, min_frequency=1).merges == []
    assert train_vocabulary({}, 300, min_frequency=1).merges == []
    assert train_vocabulary({"ab": 5}, 256, min_frequency=1).merges == []
    assert train_vocabulary({"ab": 5}, 3, min_frequency=1).merges == []
    assert continue_merges(tiny, {"ab": 5}, 0, 1) == []


def test_training_on_the_counts_gives_the_merges_of_training_on_the_text(tiny: Tokenizer) -> None:
    sentences = [f"{one} {two}" for one in SENTENCES for two in SENTENCES]
    on_text = Tokenizer(models.BPE())
    on_text.pre_tokenizer = tiny.pre_tokenizer
    trainer = BpeTrainer(vocab_size=700, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    on_text.train_from_iterator(sentences, trainer)

    trained = train_vocabulary(count_texts(tiny, sentences), 700, min_frequency=1)

    expected = json.loads(on_text.to_str())["model"]
    vocab, merges = trained.cut(700)
    assert [list(pair) for pair in merges] == expected["merges"]
    assert vocab == expected["vocab"]


def test_a_size_beyond_what_the_words_can_give_takes_no_memory_for_it(tiny: Tokenizer) -> None:
    tracemalloc.start()
    trained = train_vocabulary({"ab": 5, "abc": 3}, 10**9, min_frequency=1)
    added = continue_merges(tiny, {"ĉĉĉĉĉ": 5}, 10**9, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert trained.merges == [("a", "b"), ("ab", "c")]
    assert len(added) == 3
    assert peak < 2**26


@pytest.mark.parametrize("least", [1, 9])
def test_arrays_grow_and_gone_pairs_are_forgotten_as_others_come_up(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    rng = random.Random(8)
    counts = {"".join(rng.choices("abcdefghij", k=12)): rng.randint(1, 50) for _ in range(400)}
    monkeypatch.setattr(bpe, "GROWTH", 100.0)
    expected = train_vocabulary(counts, 1_500, min_frequency=least).merges

    monkeypatch.setattr(bpe, "GROWTH", 1.0)
    monkeypatch.setattr(bpe, "FIRST_PAIRS", 2)

    assert train_vocabulary(counts, 1_500, min_frequency=least).merges == expected


def test_a_table_beyond_positions_of_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "MAX_CELLS", 10)

    with pytest.raises(DataError, match="the different words of the corpus have 12 bytes"):
        train_vocabulary({"abcd": 1, "efgh": 2, "ijkl": 3}, 300, min_frequency=1)
