"""Pages for readers of other languages: complete, true to what others wrote, and open about what stays English."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from anadil.page import translation
from anadil.page.translation import Translation
from anadil.recipe.sections import Recipe, Report
from anadil.report.run import run
from tests.kit import report_run
from tests.report.test_page import Page

READERS = [code for code in translation.languages() if code != "en"]
PREFERENCE = {"heldout_accuracy": 0.7, "heldout_margin": 0.3, "heldout_pairs": 24}
NAMES = {"belebele azj Latn (acc)"}
"""Texts of several words that the fixture's data holds."""
OF_KEYS = ("limits ", "preference ")
"""Beginnings of texts that end with a key of a file."""
HOLE = re.compile(r"\{\d\}")
ENGLISH_WORD = re.compile(r"[a-z]{4,}(?:-[a-z]+)?")


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(root: Path, reader: str, **changed: Any) -> dict[str, str]:
    recipe = Recipe.model_validate(
        {"base": {"model": "tiny"}, "language": "az", "report": {"reader": reader}}
    )
    job = report_run.job(root, recipe, preference=PREFERENCE, **changed)
    run(job)
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in job.out.iterdir()
        if path.suffix in (".html", ".md")
    }


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Each text of the pages that are written in a test -> its translation."""
    known: dict[str, str | None] = {}
    node = Translation.node

    def noted(self: Translation, text: str) -> str:
        if text.strip():
            known[text.strip()] = self.known(text.strip())
        return node(self, text)

    monkeypatch.setattr(Translation, "node", noted)
    return known


def test_every_text_has_a_translation_or_is_a_name(
    tmp_path: Path, reader: str, texts: dict[str, str | None]
) -> None:
    pages = written(tmp_path, reader)

    assert pages.keys() == {"report.html", "report.md", "model_card.md", "data_card.md"}
    assert len(texts) > 500
    assert {text for text, translated in texts.items() if translated is None} <= NAMES


def test_no_word_of_a_message_stays_in_english(
    tmp_path: Path, reader: str, texts: dict[str, str | None]
) -> None:
    rows = list(translation.messages())
    # Both languages borrow some words, such as `model`. Keys of recipes and names of files are no words.
    borrowed = {word for row in rows for word in row[reader].split()}
    words = {word for row in rows for word in row["en"].split() if ENGLISH_WORD.fullmatch(word)} - borrowed

    written(tmp_path, reader)

    left = {
        text: words.intersection(translated.split())
        for text, translated in texts.items()
        if translated and not text.startswith(("\ue000", *OF_KEYS))
    }
    assert {text: found for text, found in left.items() if found} == {}


def test_what_others_wrote_stays_even_if_it_is_a_message(tmp_path: Path, reader: str) -> None:
    message = "Quality gate"

    pages = written(
        tmp_path, reader, kept=(message,), rejected={"language": message},
        scores=report_run.scores(text=message) | {"gate": {"passed": None, "checks": []}},
    )  # fmt: skip

    shown = re.findall(rf'<p[^>]* dir="auto">{message}</p>', pages["report.html"])
    assert len(shown) >= 5
    assert f": {message}\n" in pages["report.md"]
    assert "\ue000" not in "".join(pages.values())


def test_the_page_has_the_readers_language_and_texts_keep_theirs(tmp_path: Path, reader: str) -> None:
    page = written(tmp_path, reader)["report.html"]

    assert f'<html lang="{reader}">' in page
    assert page.count("<html") == 1
    assert '<p class="asked" lang="az" dir="auto">' in page
    assert Page(page).mistakes == []


def test_every_page_says_that_no_native_speaker_has_read_it(tmp_path: Path, reader: str) -> None:
    pages = written(tmp_path, reader)

    sentence = "No native speaker has read this translation."
    for page in pages.values():
        assert sentence in page
        assert str(Translation(reader).known(sentence)) in page


def test_what_stays_english_is_counted(reader: str) -> None:
    page = '<html lang="en"><body><p>Nobody translated this.</p><p>Quality gate</p><footer></footer></body></html>'

    translated = translation.html(page, reader)

    assert "<p>Nobody translated this.</p>" in translated
    assert "1 of 2 texts have none and stay English." in translated
    assert "Quality gate" not in translated


def test_a_sentence_with_an_unknown_part_stays_whole(reader: str) -> None:
    texts = Translation(reader)

    assert texts.known("The finetuned model passed.") != "The finetuned model passed."
    assert texts.known("The finetuned model passed for what nobody knows.") is None
    assert texts.known("sampled: what nobody knows") is None


def test_each_clause_of_a_sentence_is_translated_by_its_own_message() -> None:
    texts = Translation("ja")
    failed = "share of answers that end is 0.2 (0.1 to 0.3), the limit at least 0.5"
    rest = "bits per byte over the adapted model's is 1.2, the limit 1.05; and 2 more"

    sentence = texts.known(f"The finetuned model did not pass for answering: {failed}; {rest}.")

    assert sentence == (
        "微調整済みモデルは応答用として不合格です：終わりまで生成した応答の割合は 0.2 (0.1～0.3)（基準 0.5 以上）、"
        "バイトあたりビット（適応済みモデル比）は 1.2（基準 1.05）、ほか 2 件。"
    )
    assert (
        texts.known("Merged: the trained model, 0.25 of the base.")
        == "マージ内容：学習済みモデル、ベース 0.25。"
    )


def test_azerbaijani_writes_decimal_commas() -> None:
    texts = Translation("az")

    assert texts.known("45,508") == "45\xa0508"
    assert texts.known("−1,234.5 (0.58 to 2e-4)") == "−1\xa0234,5 (0,58 – 2e-4)"
    assert texts.known("0.1.0") == "0.1.0"
    assert Translation("ja").known("45,508") == "45,508"


def test_the_first_letter_follows_the_sentence() -> None:
    texts = Translation("az")

    assert texts.known("Loss fell by 3 %, from 2.0 to 1.9.") == "İtki 3 % azaldı: 2,0 – 1,9."
    assert texts.known("The finetuned model passed.") == "Dəqiq sazlanmış model qapıdan keçdi."


def test_the_table_is_whole() -> None:
    assert tuple(translation.languages()) == get_args(Report.model_fields["reader"].annotation)
    rows = list(translation.messages())
    assert len({row["en"] for row in rows}) == len(rows)
    for row in rows:
        places = [f"{{{number}}}" for number, _ in enumerate(translation.PLACE.findall(row["en"]), start=1)]
        for code in READERS:
            assert row[code].strip(), row
            assert sorted(HOLE.findall(row[code])) == places, row


def test_charts_leave_room_for_the_translated_labels(tmp_path: Path) -> None:
    english, azerbaijani = (written(tmp_path / code, code)["report.html"] for code in ("en", "az"))

    def room(page: str, label: str) -> float:
        return max(map(float, re.findall(rf'<text class="name" x="([\d.]+)"[^>]*>{label}</text>', page)))

    assert room(azerbaijani, "uyğunlaşdırılmış") > room(english, "adapted")
