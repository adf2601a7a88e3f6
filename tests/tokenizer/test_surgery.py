import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from anadil.artifacts.base_model import LLAMA_3_SPECIALS, tiny_text
from anadil.core.errors import DataError, IntegrityError
from anadil.recipe.sections import Tokenizer as Settings
from anadil.runtime.job import Job
from anadil.text.cut_patterns import LLAMA_3_REGEX
from anadil.tokenizer import surgery as surgery_module
from anadil.tokenizer.bpe import continue_merges
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    embedding_rows,
    extend_vocabulary,
    write_embedding_map,
)
from anadil.tokenizer.fertility import unchanged_share
from anadil.tokenizer.makers import Maker, extensions, surgeries
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.run import run
from anadil.tokenizer.surgery import BanList, Surgery, plan_surgery, pruned_base
from anadil.tokenizer.usage import SweepUsage
from anadil.tokenizer.word_counts import WordCounts

from .conftest import SENTENCES, written

ENGLISH = (
    "The statement is used to wrap the execution of a block with methods defined by a context manager.",
    "Newspapers said that the river had not been so high since the bridge was built.",
)
RUSSIAN = (
    "Мы долго шли вдоль реки и говорили о том, что видели на ярмарке в городе.",
    "Бабушка говорила, что зимой в городе было очень холодно и темно.",
    "Слово за слово разговор затянулся до вечера, и все забыли о времени.",
)
JAPANESE = ("図書館で新しい本を借りて、電車の中で読みました。", "彼は新しい図書館で働いています。")
NUM_NEW = 40
TEXT = "Kitablardan <|eot_id|> için Azərbaycan  dilində , it 's 12345 😀 слово\n\n"


def trained(*, ignore_merges: bool) -> Tokenizer:
    """A base that has learnt English, Russian and Japanese."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(Regex(LLAMA_3_REGEX), "isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, levels])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*ENGLISH, *RUSSIAN, *JAPANESE] * 2, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in LLAMA_3_SPECIALS]
    )
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["ignore_merges", "merges"])
def base(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(ignore_merges=request.param)


@pytest.fixture(scope="module")
def counts(base: Tokenizer) -> WordCounts:
    return count_texts(base, [f"{one} {two}" for one in SENTENCES for two in SENTENCES])


@pytest.fixture(scope="module")
def surgery(base: Tokenizer, counts: WordCounts) -> Surgery:
    kept = dict(count_texts(base, ENGLISH).items())
    return plan_surgery(base, counts.items(), kept.items())


@pytest.fixture(scope="module")
def merges(surgery: Surgery, counts: WordCounts) -> list[tuple[str, str]]:
    return continue_merges(surgery.reduced, counts, NUM_NEW, 2, surgery.is_banned)


@pytest.fixture(scope="module")
def made(surgery: Surgery, merges: list[tuple[str, str]]) -> Tokenizer:
    return surgery.exchanged(merges)


def test_the_vocabulary_keeps_its_size_and_all_other_tokens_their_ids(
    base: Tokenizer, made: Tokenizer, surgery: Surgery, merges: list[tuple[str, str]]
) -> None:
    old, new = base.get_vocab(), made.get_vocab()
    removed = set(surgery.removable[:NUM_NEW])

    assert len(merges) == NUM_NEW
    assert len(surgery.removable) > NUM_NEW
    assert sorted(new.values()) == list(range(len(old)))
    assert {token: index for token, index in new.items() if token in old} == {
        token: index for token, index in old.items() if token not in removed
    }
    assert {new[left + right] for left, right in merges} == {old[token] for token in removed}


def test_only_tokens_of_scripts_that_nothing_uses_leave_and_no_byte_or_special_token(
    surgery: Surgery,
) -> None:
    decoder = decoders.ByteLevel()

    texts = [decoder.decode([token]) for token in surgery.removable]

    assert all(len(token) > 1 for token in surgery.removable)
    assert not any(letter.isascii() and letter.isalpha() for text in texts for letter in text)
    assert not set(LLAMA_3_SPECIALS) & set(surgery.removable)
    assert any("я" in text for text in texts)
    assert any("図" in text for text in texts)


def test_each_token_is_reached_by_merging_its_bytes(
    base: Tokenizer, made: Tokenizer, merges: list[tuple[str, str]]
) -> None:
    def unreached(tokenizer: Tokenizer) -> set[str]:
        content = json.loads(tokenizer.to_str())
        content["model"]["ignore_merges"] = False
        model = Tokenizer.from_str(json.dumps(content)).model
        tokens = content["model"]["vocab"].keys() - set(LLAMA_3_SPECIALS)
        return {token for token in tokens if [piece.value for piece in model.tokenize(token)] != [token]}

    assert not unreached(base)
    assert not unreached(made)


def test_a_merge_whose_parts_are_missing_is_refused(surgery: Surgery, merges: list[tuple[str, str]]) -> None:
    from anadil.tokenizer.surgery import _require_reachable

    content = json.loads(surgery.exchanged(merges).to_str())
    content["model"]["merges"].remove(list(merges[0]))

    with pytest.raises(IntegrityError, match="out of reach, its bytes become"):
        _require_reachable(content, [left + right for left, right in merges])


def test_kept_texts_are_cut_as_before_and_the_target_in_fewer_tokens(
    base: Tokenizer, made: Tokenizer, surgery: Surgery
) -> None:
    text = " ".join(SENTENCES)

    assert unchanged_share(base, made, ENGLISH) == 1
    assert len(made.encode(text).ids) < 0.8 * len(base.encode(text).ids)
    # Nor does any other text in the scripts in use need what leaves.
    unseen = (
        "Nobody had said a word of the naïve café – “why?”, said the wrapper.",
        "Büdcə ₼ 12 😀 № 7",
        *SENTENCES,
    )
    assert unchanged_share(base, surgery.reduced, unseen) == 1
    assert unchanged_share(base, surgery.reduced, RUSSIAN) == 0


def test_any_text_comes_back(made: Tokenizer) -> None:
    draw = random.Random(16)
    planes = [(0, 0xD800), (0xE000, 0x10000), *((plane << 16, (plane + 1) << 16) for plane in range(1, 17))]
    texts = ["".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(20)) for _ in range(1_000)]

    for text in [*texts, *SENTENCES, *RUSSIAN, *JAPANESE, TEXT]:
        ids = made.encode(text, add_special_tokens=False).ids
        assert made.decode(ids, skip_special_tokens=False) == text


def test_the_map_keeps_rows_and_makes_new_ones_of_old_pieces(
    base: Tokenizer, made: Tokenizer, merges: list[tuple[str, str]], tmp_path: Path
) -> None:
    candidate = TokenizerCandidate(strategy="surgery", asked=NUM_NEW, got=NUM_NEW, tokenizer=made)

    write_embedding_map(candidate, base, tmp_path, pad_to=128)

    content = json.loads((tmp_path / "embedding_map.json").read_text(encoding="utf-8"))
    new = {made.token_to_id(left + right) for left, right in merges}
    assert content["rows"] == embedding_rows(base, made)
    assert content["vocab_size"] == content["base_vocab_size"] == len(base.get_vocab())
    assert (content["kept"], content["new"], content["unused"]) == (
        len(base.get_vocab()) - NUM_NEW,
        NUM_NEW,
        0,
    )
    for index, row in enumerate(content["rows"]):
        spelled = "".join(base.id_to_token(piece) or "" for piece in row)
        assert spelled == made.id_to_token(index)
        assert (row == [index]) == (index not in new)


def test_a_smaller_exchange_is_the_start_of_a_larger_one(
    base: Tokenizer, counts: WordCounts, merges: list[tuple[str, str]]
) -> None:
    settings = Settings(strategies=("surgery",), vocab_sizes=(10, NUM_NEW))
    kept = dict(count_texts(base, ENGLISH).items())

    small, large = surgeries(base, counts, (10, NUM_NEW), settings, kept)

    old, less, more = base.get_vocab(), small.tokenizer.get_vocab(), large.tokenizer.get_vocab()
    assert [left + right for left, right in merges[:10]] == sorted(
        less.keys() - old.keys(), key=less.__getitem__
    )
    assert less.keys() - old.keys() < more.keys() - old.keys()
    assert large.vocab_size == small.vocab_size == len(old)


@pytest.mark.parametrize("size", [0, 1, 20, NUM_NEW])
def test_one_count_says_how_often_every_size_uses_its_tokens(
    base: Tokenizer, counts: WordCounts, surgery: Surgery, size: int
) -> None:
    """Also where the corpus holds some words of a script that leaves."""
    table = dict(counts.items()) | dict(count_texts(base, RUSSIAN[:1]).items())
    merges = continue_merges(surgery.reduced, table, NUM_NEW, 2, surgery.is_banned)

    sweep = SweepUsage(
        surgery.exchanged(merges), table, merges, min_uses=20, is_alike=surgery.alphabet.spells
    )

    tokenizer = surgery.exchanged(merges[:size])
    alone = SweepUsage(tokenizer, table, merges[:size], min_uses=20)
    assert sweep.of(tokenizer, size) == alone.of(tokenizer, size)


def test_a_base_with_nothing_to_exchange_leaves_the_other_strategies_their_comparison(
    make_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(strategies=["base", "surgery", "extend"], vocab_sizes=[50])

    run(job)

    table = written(job, "fertility")["candidates"]
    assert set(table) == {"base", "extend-50"}
    assert "tokenizer.strategies: surgery: the base has no token of a script" in caplog.text


@pytest.mark.parametrize("maker", [extensions, surgeries])
def test_kept_words_of_the_corpus_itself_are_cut_as_before(
    base: Tokenizer, counts: WordCounts, maker: Maker
) -> None:
    kept = dict(count_texts(base, SENTENCES[:1]).items())

    (free,) = maker(base, counts, (NUM_NEW,), Settings(), {})
    (held,) = maker(base, counts, (NUM_NEW,), Settings(), kept)

    assert unchanged_share(base, free.tokenizer, SENTENCES[:1]) == 0
    assert unchanged_share(base, held.tokenizer, SENTENCES[:1]) == 1


def test_more_than_can_be_exchanged_is_said(
    base: Tokenizer, counts: WordCounts, surgery: Surgery, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(strategies=("surgery",), vocab_sizes=(5_000,))

    (candidate,) = surgeries(base, counts, (5_000,), settings, dict(count_texts(base, ENGLISH).items()))

    assert candidate.got == len(surgery.removable)
    assert (
        f"asked for 5000 tokens, but only {len(surgery.removable)} of the base's can be exchanged"
        in caplog.text
    )


WORDS = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=8)


@given(words=WORDS, token=st.text("abc", min_size=1, max_size=4))
def test_a_string_is_banned_if_and_only_if_it_is_part_of_a_pretoken(words: list[str], token: str) -> None:
    assert BanList(words)(token) == any(token in word for word in words)


KEPT = tiny_text()[:20_000].splitlines()


def test_unused_tokens_leave_and_every_text_of_the_sample_is_cut_as_before(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surgery_module, "LEAST_KEPT_BYTES", 10_000)
    words = count_texts(tiny, SENTENCES * 3)
    kept = count_texts(tiny, KEPT)

    pruned = pruned_base(tiny, words.items(), kept.items())
    extended = extend_vocabulary(pruned, continue_merges(pruned, words, 50, 2))

    size = pruned.get_vocab_size()
    assert size < 0.6 * tiny.get_vocab_size()
    assert unchanged_share(tiny, pruned, [*KEPT, *SENTENCES]) == 1
    assert sorted(pruned.get_vocab().values()) == list(range(size))
    assert [pruned.token_to_id(each) for each in LLAMA_3_SPECIALS] == list(range(size - 6, size))
    text = "日本語 слово any other text 😀"
    assert pruned.decode(pruned.encode(text, add_special_tokens=False).ids) == text
    for index, row in enumerate(embedding_rows(tiny, extended)):
        assert "".join(tiny.id_to_token(piece) or "" for piece in row) == extended.id_to_token(index)
        assert (len(row) == 1) == (index < size)


def test_a_short_sample_is_refused(tiny: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.prune: the texts of tokenizer\.keep have 9 bytes"):
        pruned_base(tiny, [("kitab", 1)], [("the", 3)])
