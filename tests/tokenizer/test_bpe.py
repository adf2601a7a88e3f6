import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from anadil.core.errors import DataError
from anadil.text.cut_patterns import ALPHABET
from anadil.tokenizer import bpe
from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.pretokens import count_texts
from tests.kit import texts
from tests.kit.marks import matrix, slow
from tests.kit.reference_bpe import library_merges, plain_merges
from tests.tokenizer.conftest import SENTENCES

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


def test_no_pair_rarer_than_the_least_is_merged() -> None:
    counts = {"abc": 5, "xy": 4, "z": 100}

    assert train_vocabulary(counts, 300, min_frequency=5).merges == [("a", "b"), ("ab", "c")]
    assert train_vocabulary({"z": 100, "": 3}, 300, min_frequency=1).merges == []
    assert train_vocabulary({}, 300, min_frequency=1).merges == []


def test_a_vocabulary_that_leaves_no_room_has_no_merges(tiny: Tokenizer) -> None:
    assert train_vocabulary({"ab": 5}, 256, min_frequency=1).merges == []
    assert train_vocabulary({"ab": 5}, 3, min_frequency=1).merges == []
    assert continue_merges(tiny, {"ab": 5}, 0, 1) == []


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
