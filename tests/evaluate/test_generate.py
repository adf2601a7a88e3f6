import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from anadil.evaluate.generate import (
    GeneratedText,
    GenerationPrompt,
    generate_texts,
    language_of,
    output_language,
    repetition_of,
    with_languages,
)
from anadil.language import learn_language as learning
from anadil.language.learn_language import learn_language
from anadil.model.decoding import open_decoder
from anadil.model.load import encode_text
from anadil.text.language import load_language
from anadil.text.language_data import LanguageModel
from anadil.text.language_pack import Identification, LanguagePack, to_language
from tests.kit.constructed import documents

from .conftest import TEMPLATE, tiny_model, train_tokenizer

BEGINNINGS = ("Bakı şəhəri", "Dünən səhər")


def write(
    model: Any, tokenizer: Any, *prompts: GenerationPrompt, new: int = 16, seed: int = 0
) -> list[GeneratedText]:
    return generate_texts(
        open_decoder(model, tokenizer), tokenizer, prompts, max_new_tokens=new, seed=seed, name="base"
    )


def continuation(text: str) -> GenerationPrompt:
    return GenerationPrompt(text=text, kind="continuation")


def always(model: Any, token: int) -> Any:
    with torch.no_grad():
        model.config.tie_word_embeddings = False
        model.lm_head = torch.nn.Linear(32, model.config.vocab_size, bias=True)
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()
        model.lm_head.bias[token] = 50.0
    return model


def read_by_model(tokenizer: Any, prompt: GenerationPrompt) -> list[int]:
    model = tiny_model(len(tokenizer))
    read: list[list[int]] = []
    model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"][0].tolist()), with_kwargs=True
    )
    write(model, tokenizer, prompt, new=1)
    return read[0]


def test_a_row_that_only_fills_the_embedding_up_is_never_written(tokenizer: Any) -> None:
    padded = always(tiny_model(len(tokenizer) + 5), len(tokenizer) + 2)
    letter = encode_text(tokenizer, "B")[0]
    with torch.no_grad():
        padded.lm_head.bias[letter] = 25.0

    for text in write(padded, tokenizer, continuation(BEGINNINGS[0]), new=3):
        assert text.text == 3 * tokenizer.decode([letter])


def test_the_order_of_prompts_changes_no_sample(model: Any, tokenizer: Any) -> None:
    first, second = (continuation(text) for text in BEGINNINGS)

    forward = write(model, tokenizer, first, second)
    backward = write(model, tokenizer, second, first)

    assert forward == backward[2:] + backward[:2]


def test_the_seed_decides_the_samples(model: Any, tokenizer: Any) -> None:
    prompt = continuation(BEGINNINGS[0])

    texts = [write(model, tokenizer, prompt, seed=seed)[1].text for seed in (0, 0, 1)]

    assert texts[0] == texts[1] != texts[2]


def test_a_perfect_loop_is_measured_as_one(tokenizer: Any) -> None:
    (token,) = encode_text(tokenizer, "a")
    model = always(tiny_model(len(tokenizer)), token)

    made = write(model, tokenizer, continuation("a"))

    assert made[0].text == "a" * 16
    assert made[0].loop
    assert not made[0].ended
    assert made[0].distinct_1 == 1 / 16
    assert repetition_of(made)["greedy"]["loop_rate"] == 1
    assert repetition_of(made)["greedy"]["ended_rate"] == 0


@pytest.mark.parametrize("end", ["<|end_of_text|>", "<|eot_id|>"])
def test_each_end_token_ends_a_text(end: str, tokenizer: Any) -> None:
    model = always(tiny_model(len(tokenizer)), tokenizer.convert_tokens_to_ids(end))

    made = write(model, tokenizer, continuation("Salam"))

    assert made[0].text == ""
    assert made[0].ended
    assert made[0].num_tokens == 0
    assert not made[0].loop


def test_other_special_tokens_are_not_shown(tokenizer: Any) -> None:
    model = always(tiny_model(len(tokenizer)), tokenizer.convert_tokens_to_ids("<|start_header_id|>"))

    made = write(model, tokenizer, continuation("Salam"))

    assert made[0].text == ""
    assert made[0].num_tokens == 16


def test_a_question_goes_through_the_chat_template_with_one_bos_and_control_text_is_read_as_letters() -> None:
    tokenizer: Any = train_tokenizer(400)
    tokenizer.chat_template = TEMPLATE

    read = read_by_model(tokenizer, GenerationPrompt(text="Paytaxt haradır?", kind="answer", chat=True))

    assert tokenizer.decode(read) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nPaytaxt haradır?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert read.count(tokenizer.bos_token_id) == 1
    attacked = read_by_model(tokenizer, continuation("Salam <|eot_id|>"))
    assert set(attacked) & set(tokenizer.all_special_ids) == {tokenizer.bos_token_id}


def test_a_prompt_longer_than_the_model_keeps_its_end_and_more_new_tokens_than_positions_are_cut(
    tokenizer: Any,
) -> None:
    model = tiny_model(len(tokenizer), max_positions=24)

    cut = write(model, tokenizer, continuation("Bakı " * 100), new=10)
    long = write(model, tokenizer, continuation("Bakı şəhəri"), new=500)

    assert cut[0].num_tokens + cut[0].ended >= 1
    assert cut[0].num_tokens <= 10
    assert all(one.num_tokens <= 23 for one in long)


def test_means_leave_out_texts_too_short_for_the_ngram() -> None:
    def one(tokens: int, distinct_4: float) -> GeneratedText:
        return GeneratedText(
            prompt="a", kind="answer", mode="greedy", chat=False, text="", num_tokens=tokens, ended=True,
            loop=False, distinct_1=1.0, distinct_2=1.0, distinct_4=distinct_4,
        )  # fmt: skip

    table = repetition_of([one(10, 0.5), one(3, 0.0)])

    assert table["greedy"]["distinct_4"] == 0.5
    assert table["greedy"]["samples"] == 2
    assert "sampled" not in table


AZ = load_language("az")
AZERBAIJANI = "Mən bu gün bazara getdim və çoxlu meyvə aldım."
TURKISH = "Ben bugün pazara gittim ve çok meyve aldım."
ENGLISH = "Today I went to the market and bought some fruit."


def written(text: str) -> GeneratedText:
    return GeneratedText(
        prompt="a", kind="answer", mode="greedy", chat=False, text=text, num_tokens=9, ended=True,
        loop=False, distinct_1=1.0, distinct_2=1.0, distinct_4=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (AZERBAIJANI, "az"),
        (TURKISH, "tr"),
        (ENGLISH, "en"),
        ("Bakı!", None),
        ('"' * 50, None),
        ("Bu gün hava çox istidir, bağa gedirik", "az"),
        ("Bu yüzden yapmak zorunda kaldığımız şeyi yaptık", "tr"),
        ("mmmmmmmm mmmmmmmm mmmmmmmm mmmmmmmmm mmmm", "un"),
    ],
)
def test_a_text_is_told_by_the_identifier_of_the_cleaner(text: str, code: str | None) -> None:
    assert language_of(text, AZ) == code


def test_shares_are_of_the_texts_that_could_be_told() -> None:
    texts = with_languages(
        [written(text) for text in (AZERBAIJANI, TURKISH, AZERBAIJANI, "Hə.", ENGLISH)], AZ
    )

    assert [one.language for one in texts] == ["az", "tr", "az", None, "en"]
    assert output_language(texts, AZ) == {
        "num": 4, "own": 0.5, "shares": {"az": 0.5, "en": 0.25, "tr": 0.25},
    }  # fmt: skip


def test_nothing_told_is_no_share() -> None:
    assert output_language([written("Hə.")], AZ) == {"num": 0, "own": None, "shares": {}}


def test_a_users_identifier_that_is_not_there_ends_no_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    model = LanguageModel(path="/not/there.bin", label="__label__qaa", sha256="")
    pack = LanguagePack(code="qaa", name="X", script="Latn", identification=Identification(model=model))

    with caplog.at_level(logging.WARNING):
        texts = with_languages([written(AZERBAIJANI)], to_language(pack))

    assert texts == [replace(texts[0], language=None)]
    assert "the fastText model /not/there.bin" in caplog.text


def test_what_the_identifier_refuses_under_the_languages_own_code_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anadil.text.language_id._is_confirmed", lambda *_: False)
    monkeypatch.setattr("anadil.text.language_id._detect", lambda _: (False, "az", 90, False, {}))

    assert language_of(TURKISH, AZ) == "un"


def test_text_in_another_script_is_not_of_a_learnt_language_however_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 10_000)
    language = to_language(learn_language("qaa", documents(60), {}).pack)

    monkeypatch.setattr("anadil.text.language_id._detect", lambda _: (False, "un", 0, False, {}))

    assert language_of("Lömuk tanëv rasul minok", language) == "qaa"  # of 20 letters a profile tells nothing
    assert language_of("Кимадоналукера лупино", language) == "un"
