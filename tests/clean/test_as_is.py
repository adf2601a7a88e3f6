"""Corpora that are clean already: `clean.as_is` and `anadil corpus import`."""

import json
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.core.errors import DataError, RecipeError
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.report.data_card import AS_IS, rules_note
from tests.kit.clean_stage import clean, documents, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE

NOT_NORMALIZED = (
    "Bakı\u00a0şəhərində  e\u0301vlər\r\n\r\n\r\nçoxdur \\n &uuml; \ufb01 və <br> orada qalır.\t \n"
)
NEAR = AZERBAIJANI + " Son."


@pytest.mark.parametrize("language", ["az", "ja"])
def test_texts_stay_as_they_are_and_only_empty_ones_and_copies_go(language: str, tmp_path: Path) -> None:
    texts = [NOT_NORMALIZED, AZERBAIJANI, NEAR, AZERBAIJANI, "", ENGLISH, JAPANESE, ANOTHER, "a"]

    corpus = clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", texts), language=language, as_is=True)

    assert sorted(each.text for each in documents(corpus)) == sorted({*texts} - {""})
    counts = stats(corpus)
    assert counts["dropped"] == {"duplicate": 1, "empty": 1}
    assert (counts["in"], counts["kept"], counts["normalized"], counts["foreign_lines"]) == (9, 7, 0, 0)
    assert rules_note(counts) == AS_IS


def test_what_no_file_can_hold_goes(tmp_path: Path) -> None:
    texts = ["bir\0iki \ud83d", AZERBAIJANI, ANOTHER]

    corpus = clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", texts), as_is=True)

    assert "biriki " in {each.text for each in documents(corpus)}
    assert stats(corpus)["normalized"] == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"pii": True}, "pii would change or drop some; leave it out, or as_is"),
        ({"rules": {"min_words": 3}}, "rules would change"),
        (
            {"line_language": True, "pii": True},
            "line_language and pii would change or drop some; leave them out",
        ),
    ],
)
def test_a_key_that_would_change_a_text_is_a_mistake(keys: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse_recipe(json.dumps({"clean": {"as_is": True, **keys}}), "recipe")


def test_a_recipe_that_was_resolved_is_read_again() -> None:
    recipe = load_recipe("smoke", ["clean.as_is=true"])

    again = load_recipe(recipe.model_dump_json())

    assert again == recipe
    assert recipe.of_source("az").clean.rules == "none"
    assert recipe.of_source("az").clean.line_language is False


def test_web_pages_are_no_text_yet(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<p>Salam</p>", encoding="utf-8")

    with pytest.raises(
        DataError, match=r"1 file of web pages, such as .*page.html, and clean.as_is is true; give text"
    ):
        clean(tmp_path, page, as_is=True)


def test_the_command_imports_what_a_run_by_such_a_recipe_would_make(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [AZERBAIJANI, NEAR, ENGLISH])
    work = ["--work", str(tmp_path / "work")]

    first = main(["corpus", "import", str(file), "--language", "az", *work, "--set", "clean.workers=1"])
    uri = capfd.readouterr().out.strip()
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        json.dumps({"language": "az", "clean": {"inputs": [str(file)], "as_is": True}}), "utf-8"
    )
    root = f"storage.root={tmp_path / 'work'}"
    keys = ["--set", "clean.heldout_fraction=0.1", "--set", root]
    second = main(["clean", "--recipe", str(recipe), *keys])

    captured = capfd.readouterr()
    assert (first, second) == (0, 0)
    assert Path(uri).parent == tmp_path / "work/corpus"
    assert captured.out.strip() == uri
    assert f"reused {uri}" in captured.err
    assert stats(Path(uri))["kept"] == 3
