"""The ids of tokenizers, by whatever library they are made."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from anadil.artifacts.base_model import base_tokenizer, read_tokenizer, tiny_text
from anadil.core.errors import DataError
from anadil.recipe.sections import Base
from anadil.text import encoder as encoder_module
from anadil.text.cut_patterns import (
    ALPHABET,
    GPT_2_REGEX,
    KNOWN_PATTERNS,
    LLAMA_3_REGEX,
    NEW_LETTERS,
    QWEN_REGEX,
)
from anadil.text.encoder import COMPARED, BpeRanks, Encoder, ranks_of
from tests.kit.encoding import ODD, Unlike, exactly, lists, random_texts
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import make_tokenizer
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

DATA = os.environ.get("ANADIL_DATA", "")


def qwen_like() -> Tokenizer:
    """NFC, another pattern, tokens that are no control tokens, and ids with gaps in another order."""
    with_merges = json.loads(Tokenizer.from_str(tiny()).to_str())
    vocab = with_merges["model"]["vocab"]
    content = with_merges | {
        "normalizer": {"type": "NFC"},
        "added_tokens": [],
        "post_processor": None,
        "model": with_merges["model"]
        | {
            "vocab": {token: 3 * (len(vocab) - index) for token, index in vocab.items()},
            "ignore_merges": False,
        },
    }
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": QWEN_REGEX}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken("<|eot_id|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("Ölkə bu", rstrip=True)])
    return tokenizer


_tiny: list[str] = []


def tiny() -> str:
    return _tiny[0]


@pytest.fixture(scope="module", autouse=True)
def _made(tmp_path_factory: pytest.TempPathFactory) -> None:
    _tiny[:] = [read_tokenizer(base_tokenizer(Base(model="tiny"), tmp_path_factory.mktemp("base"))).to_str()]


@pytest.fixture(scope="module", params=["llama", "gpt2", "qwen"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "gpt2":
        return read_tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    return qwen_like() if request.param == "qwen" else Tokenizer.from_str(tiny())


def fast(tokenizer: Tokenizer, *, threads: int = 1) -> Encoder:
    """An encoder that does not wait for more text."""
    encoder = Encoder(tokenizer, threads=threads)
    encoder.check(())
    assert encoder.is_fast
    return encoder


@pytest.fixture
def differing(monkeypatch: pytest.MonkeyPatch) -> None:
    make = encoder_module._gigatoken_of
    monkeypatch.setattr(encoder_module, "_gigatoken_of", lambda ranks: Unlike(make(ranks)))


def test_the_fast_way_gives_the_ids_of_tokenizers(tokenizer: Tokenizer) -> None:
    texts = [
        *ODD,
        *PRETRAINING_TEXTS,
        *tiny_text().splitlines()[:100],
        " ".join(ODD),
        "\n ".join(PRETRAINING_TEXTS),
        *random_texts(1_000),
    ]
    encoder = fast(tokenizer)

    found = encoder.encode(texts)

    assert lists(found) == exactly(tokenizer, texts)
    assert encoder.is_fast


@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with az/, ja/ and en/")
@pytest.mark.parametrize("language", ["az", "ja", "en"])
def test_the_fast_way_gives_the_ids_of_tokenizers_on_real_text(tokenizer: Tokenizer, language: str) -> None:
    texts = [
        json.loads(line)["text"][:3_000]
        for file in sorted(Path(DATA, language).glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").split("\n")[:10]
        if line
    ]

    assert lists(fast(tokenizer).encode(texts)) == exactly(tokenizer, texts)


PAIRS = [(left, right) for left in ALPHABET for right in ALPHABET]


def cut_by(pattern: str, pairs: Sequence[tuple[str, str]] = PAIRS) -> Tokenizer:
    """Each pair of bytes is a token, so that ids show where a text was cut."""
    vocab = {token: index for index, token in enumerate([*ALPHABET, *map("".join, pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(pairs)))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == GPT_2_REGEX)
    cut: list[Any] = [] if pattern == GPT_2_REGEX else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, byte_level])
    return tokenizer


@pytest.mark.parametrize(("all_below", "every"), [slow(0x3000, 97), matrix(0x20000, 16)])
@pytest.mark.parametrize("pattern", KNOWN_PATTERNS, ids=["llama", "qwen", "gpt2", "qwen35"])
def test_a_known_pattern_cuts_alike_round_every_code_point(pattern: str, all_below: int, every: int) -> None:
    tried = [
        chr(point)
        for point in range(sys.maxunicode + 1)
        if not 0xD800 <= point < 0xE000 and (point < all_below or point % every == 0)
    ]
    # 64 of them to a text, for a text takes its time; a new letter among others would take them to tokenizers.
    groups = groupby(tried, lambda letter: (ord(letter) // 64, bool(NEW_LETTERS.match(letter))))
    texts = (
        "".join(f"a{c}a {c}1{c}'s{c} {c} b{c}\n{c}!{c}  '{c}A{c}b" for c in letters) for _, letters in groups
    )
    encoder = fast(cut_by(pattern))

    assert encoder.check(texts), encoder.difference


def test_what_gigatoken_refuses_is_left_to_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = cut_by(LLAMA_3_REGEX, PAIRS[:10])
    ranks = ranks_of(tokenizer)
    assert isinstance(ranks, BpeRanks)
    content = json.loads(ranks.content)
    content["pre_tokenizer"]["pretokenizers"].pop(0)

    broken = replace(ranks, content=json.dumps(content))
    monkeypatch.setattr(encoder_module, "ranks_of", lambda _: broken)
    encoder = Encoder(tokenizer)

    assert encoder.check(ODD)
    assert not encoder.is_fast
    assert lists(encoder.encode(ODD)) == exactly(tokenizer, ODD)


def vocabulary(ranks: BpeRanks) -> dict[str, int]:
    found: dict[str, int] = json.loads(ranks.content)["model"]["vocab"]
    return found


_shared: list[Encoder] = []


def shared_encoder() -> Encoder:
    if not _shared:
        _shared.append(fast(Tokenizer.from_str(tiny())))
    return _shared[0]


def test_control_text_is_never_a_control_id_and_the_tokenizer_stays_as_it_was() -> None:
    tokenizer = Tokenizer.from_str(tiny())
    control = tokenizer.get_added_tokens_decoder()
    text = " ".join(token.content for token in control.values())
    waiting, ready = Encoder(tokenizer), fast(tokenizer)

    for encoder in (waiting, ready):
        ids = encoder.encode([text])[0].tolist()
        assert not set(ids) & control.keys()
        assert tokenizer.decode(ids) == text
    assert not waiting.is_fast
    assert set(tokenizer.encode(text).ids) & control.keys()


def test_a_control_token_that_a_word_could_be_has_no_rank() -> None:
    content = json.loads(tiny())
    content["model"]["vocab"]["ovşar"] = len(content["model"]["vocab"]) + 900
    content["model"]["ignore_merges"] = True
    plain = ranks_of(Tokenizer.from_str(json.dumps(content)))
    content["added_tokens"][0]["content"] = "qxz"
    content["post_processor"] = None
    content["model"]["vocab"]["qxz"] = content["added_tokens"][0]["id"]
    control = ranks_of(Tokenizer.from_str(json.dumps(content)))

    assert isinstance(plain, BpeRanks)
    assert isinstance(control, BpeRanks)
    assert "qxz" not in vocabulary(control)


def test_half_a_surrogate_pair_is_refused_with_its_place() -> None:
    waiting, ready = Encoder(Tokenizer.from_str(tiny())), shared_encoder()

    for ask in (waiting.encode, ready.encode, ready.check):
        with pytest.raises(DataError, match=r"text 'ab\\ud83d': character 2 is half .* U\+D83D; write"):
            ask(["salam", "ab\ud83d"])


def test_an_added_token_with_a_space_inside_is_found_also_where_it_was_not_normalized() -> None:
    tokenizer = qwen_like()
    whole, tool = tokenizer.token_to_id("Ölkə bu"), tokenizer.token_to_id("<tool>")

    found = fast(tokenizer).encode(["ən O\u0308lkə bu  dur", "bir <tool> var", "ölkə"])

    assert whole in found[0]
    assert tool in found[1]
    assert lists(found) == exactly(tokenizer, ["ən O\u0308lkə bu  dur", "bir <tool> var", "ölkə"])


def test_sentencepiece_with_byte_fallback_and_its_normalizer_are_encoded_exactly() -> None:
    pieces = [("<unk>", 0.0), ("\u2581", -2.0), ("\u2581salam", -1.0), ("a", -3.0)]
    tokenizer = Tokenizer(
        models.Unigram(
            [*pieces, *((f"<0x{byte:02X}>", -9.0) for byte in range(256))], unk_id=0, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    encoder = Encoder(tokenizer)

    assert encoder.check(["salam"])
    assert not encoder.is_fast
    assert lists(encoder.encode(["salam a", "ə"])) == exactly(tokenizer, ["salam a", "ə"])


@pytest.mark.usefixtures("differing")
def test_a_difference_ends_the_fast_way_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.from_str(tiny())
    encoder = fast(tokenizer)
    texts = ["yabc xabc", *["abc salam"] * (COMPARED - 2), "xabc"]

    with caplog.at_level(logging.WARNING):
        found = [encoder.encode(["salam"]), encoder.encode(texts), encoder.encode(["xabc"])]

    expected = [exactly(tokenizer, some) for some in (["salam"], texts, ["xabc"])]
    assert [lists(ids) for ids in found] == expected
    assert [record.message.partition(" for ")[0] for record in caplog.records] == [
        "the fast encoder gives other token ids than tokenizers"
    ]
    assert not encoder.is_fast


@pytest.mark.usefixtures("differing")
def test_a_check_of_all_words_finds_the_one_that_differs() -> None:
    encoder = fast(Tokenizer.from_str(tiny()))
    words = ["abc", "salam"] * 6_000

    assert encoder.check(words)
    assert not encoder.check([*words, "xabc", *words])
    assert "for 'xabc'; encoding by tokenizers" in encoder.difference
    assert not encoder.check([])


@pytest.mark.usefixtures("differing")
def test_each_file_has_a_sample_of_its_own() -> None:
    encoder = fast(Tokenizer.from_str(tiny()))
    encoder.encode(["salam"])
    assert lists(encoder.encode(["xabc"])) != exactly(Tokenizer.from_str(tiny()), ["xabc"])  # is not compared

    encoder.begin_sample()

    assert lists(encoder.encode(["xabc"])) == exactly(Tokenizer.from_str(tiny()), ["xabc"])


def test_after_much_text_the_next_file_begins_anew_but_a_difference_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, differing = fast(Tokenizer.from_str(tiny())), fast(Tokenizer.from_str(tiny()))
    differing._give_up("xabc")
    first = encoder._fast
    monkeypatch.setattr(encoder_module, "FORGET_CHARS", 3)

    for one in (encoder, differing):
        one.encode(["salam"])
        one.begin_sample()
        one.encode(["salam"])

    assert encoder._fast not in (first, None)
    assert not differing.is_fast


def test_little_text_does_not_start_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(Tokenizer.from_str(tiny()))
    monkeypatch.setattr(encoder_module, "FAST_FROM_CHARS", 10)

    states = []
    for text in ("salam", "sağ ol", "a"):
        encoder.encode([text])
        states.append(encoder.is_fast)

    assert states == [False, True, True]


def test_a_million_blanks_are_no_trouble() -> None:
    text = " " * 1_000_000 + "a"
    encoder = shared_encoder()
    assert encoder._fast is not None

    (ids,) = encoder._fast.encode([text], [text.encode()], threads=1)

    assert encoder._tokenizer.decode(ids.tolist()) == text


def test_letters_that_only_gigatoken_knows_are_left_to_tokenizers() -> None:
    text = "salam\U000323b0's \u088f1"
    encoder = shared_encoder()
    assert encoder._fast is not None

    assert lists(encoder.encode(["", text])[1:]) == exactly(encoder._tokenizer, [text])
    assert encoder._fast._idle[0].encode(text).tolist() != encoder.encode([text])[0].tolist()


def test_threads_give_the_ids_of_one(tokenizer: Tokenizer) -> None:
    texts = [*ODD, *PRETRAINING_TEXTS] * 3

    assert lists(fast(tokenizer, threads=3).encode(texts)) == lists(fast(tokenizer).encode(texts))


def test_what_would_truncate_or_pad_is_taken_out() -> None:
    tokenizer = Tokenizer.from_str(tiny())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)

    (ids,) = Encoder(tokenizer).encode(["bir iki üç dörd"])

    assert lists([ids]) == exactly(Tokenizer.from_str(tiny()), ["bir iki üç dörd"])


class UsedByOne:
    """As gigatoken: it refuses a caller while another is in it."""

    def __init__(self, real: Any) -> None:
        self._real, self._lock = real, threading.Lock()

    def encode(self, utf8: bytes) -> Any:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("Already borrowed")
        try:
            time.sleep(0.002)
            return self._real.encode(utf8)
        finally:
            self._lock.release()


def test_each_thread_has_an_encoder_that_no_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    real = encoder_module._gigatoken
    monkeypatch.setattr(encoder_module, "_gigatoken", lambda content: UsedByOne(real(content)))
    tokenizer = Tokenizer.from_str(tiny())
    texts = [f"Bakı şəhəri {number}" for number in range(60)]

    encoded = fast(tokenizer, threads=4).encode(texts)

    assert lists(encoded) == exactly(tokenizer, texts)
