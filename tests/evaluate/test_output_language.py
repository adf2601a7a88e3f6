import logging
from dataclasses import replace

import pytest

from anadil.evaluate.generate import GeneratedText, language_of, output_language, with_languages
from anadil.language import learn_language as learning
from anadil.language.learn_language import learn_language
from anadil.text.language import load_language
from anadil.text.language_data import LanguageModel
from anadil.text.language_pack import Identification, LanguagePack, to_language
from tests.kit.constructed import documents

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
