"""Bases whose vocabulary lacks some of the 256 bytes, as SmolLM 2's lacks 21."""

import json
import logging

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from anadil.recipe.sections import Tokenizer as Settings
from anadil.text.byte_symbols import SYMBOLS
from anadil.tokenizer.embedding_map import embedding_rows
from anadil.tokenizer.makers import MAKERS
from anadil.tokenizer.pretokens import count_texts

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


def test_an_extension_keeps_all_old_ids_and_says_which_bytes_are_new(
    base: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    counts = count_texts(base, KURDISH * 3)

    with caplog.at_level(logging.INFO):
        (candidate,) = MAKERS["extend"](base, counts, (20,), Settings(min_uses=1), {})

    assert "lacks 5 of the 256 bytes, which become tokens: 13 aa c3 f1 fe" in caplog.text
    assert candidate.tokenizer.get_vocab().items() >= base.get_vocab().items()
    assert candidate.tokenizer.encode(ENGLISH).ids == base.encode(ENGLISH).ids
    size = len(base.get_vocab())
    assert candidate.vocab_size == size + len(LACKED) + candidate.got
    added = json.loads(candidate.tokenizer.to_str())["added_tokens"]
    assert [token["id"] for token in added] == [base.token_to_id(token["content"]) for token in added]
