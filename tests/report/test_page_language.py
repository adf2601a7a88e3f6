"""What the report's page does for the language that it tells of."""

import re
from pathlib import Path

from anadil.recipe.sections import Recipe
from tests.kit import report_run

from tests.report.test_page import made


def test_a_page_in_a_language_without_spaces_says_what_a_word_is_and_shows_no_figures_of_azerbaijani(
    tmp_path: Path,
) -> None:
    page, short, _ = made(tmp_path, Recipe.model_validate({"language": "ja"}))

    note = "Japanese is written without spaces: a word here is a run of kanji, of hiragana"
    assert page.count(note) == 2
    assert note in short
    assert note in (tmp_path / "out/model_card.md").read_text()
    assert not [
        text for text in ("Published by", "No published", 'id="published"', "3.22 to") if text in page
    ]


def test_words_that_are_cut_are_those_in_the_languages_script(tmp_path: Path) -> None:
    table = report_run.fertility()
    for candidate in table["candidates"].values():
        candidate["samples"] = {"useState": ["use", "State"], "京都": ["京", "都"]}

    page, _, _ = made(tmp_path, Recipe.model_validate({"language": "ja"}), fertility=table)

    assert re.findall(r'<div class="cut"><h4 lang="ja">(\w+)', page) == ["京都"]


def test_samples_carry_their_language_so_that_han_letters_have_its_forms(tmp_path: Path) -> None:
    page, _, _ = made(tmp_path)

    found = re.findall(r'<p class="quote"( lang="az")? dir="auto">(\w+)', page)
    languages = {first: lang for lang, first in found}

    assert languages[report_run.KEPT[0].split()[0]]
    assert not languages["İstanbul"]
