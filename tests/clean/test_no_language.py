"""Sources in no language, and sources that no rule judges."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from anadil.clean.filters.judge_record import Settings
from anadil.clean.inspect.explain import explain_record
from anadil.clean.read.crawl_index import index_language
from anadil.clean.read.readers import RawRecord
from anadil.clean.run import run
from anadil.cli.main import STAGE_VERBS, main
from anadil.core.errors import DataError
from anadil.core.stages import STAGES
from anadil.recipe.filter_rules import Rules
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, external_side_files
from anadil.text.language import load_language
from tests.kit.clean_stage import InThisProcess, documents, page, stats, warc_record, write_jsonl, write_warc
from tests.kit.overlapping import cleaned, compared, excluded
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, TURKISH

CODE = [
    'def first(values):\n    """Return the first."""\n\n\n\n    return values [0]   \n',
    "all: build\n\tcp -r a  b\n\techo 'done'\r\n\n",
    '{"name":  "ﬁ",\n  "e\\u0301": ["&uuml;", "a\\nb"]\n}',
    "\ufeff<!DOCTYPE html>\n<p>One.<br>Two.</p>\n<!-- a note -->",
    "select  *\u00a0from t -- x\u200by\n",
]
ITEM = "Göygöl milli parkının ərazisində neçə göl var və onlardan ən böyüyü hansıdır?"


def recipe_of(folder: Path, inputs: list[str], source: dict[str, Any], **more: Any) -> Recipe:
    """A recipe with a source `code` beside one in the language that is taught."""
    data = {
        "language": "az",
        "storage": {"root": str(folder / "artifacts")},
        "clean": {"workers": 1, "heldout_max_documents": 1},
        "sources": {
            "web": {"inputs": [str(write_jsonl(folder / "web.jsonl", [AZERBAIJANI, ANOTHER, ITEM * 9]))]},
            "code": {"inputs": inputs, **source},
        },
        "pretrain": {
            "phases": [{"trains": "all", "steps": 1, "lr": 0.001, "mix": {"web": 0.5, "code": 0.5}}]
        },
        **more,
    }
    return parse_recipe(json.dumps(data), "recipe")


def clean(folder: Path, texts: list[str] | Path, language: str = "none", **clean: Any) -> Path:
    """The corpus of a source, which no rule judges unless `clean` says otherwise."""
    inputs = texts if isinstance(texts, Path) else write_jsonl(folder / "code.jsonl", texts)
    more = clean.pop("more", {})
    source = {"language": language, "clean": {"rules": "none", **clean}}
    recipe = recipe_of(folder, [str(inputs)], source, **more).of_source("code")
    out = folder / "corpus"
    out.mkdir()
    job = Job(
        recipe=recipe, inputs={}, files=(str(inputs),), out=out, work=folder, base_cache=folder,
        side_files=external_side_files(STAGES["clean"], recipe),
    )  # fmt: skip
    run(job, InThisProcess())
    return out


def texts_of(corpus: Path) -> set[str]:
    return {document.text for document in documents(corpus)}


def test_text_in_no_language_stays_as_it_is(tmp_path: Path) -> None:
    corpus = clean(tmp_path, CODE)

    assert texts_of(corpus) == set(CODE)
    counts = stats(corpus)
    assert (counts["language"], counts["kept"], counts["normalized"]) == ("none", len(CODE), 0)
    assert {document.lang for document in documents(corpus)} == {"none"}


def test_only_nul_and_lone_surrogates_go_from_text_in_no_language() -> None:
    normalize = load_language("none").normalize

    assert normalize("a\0b\ud800 \ud83d\ude00\t ") == "ab \U0001f600\t "
    assert normalize(normalize("\ud83d\0\ude00")) == "\U0001f600"


def test_a_twin_and_a_near_twin_of_code_are_found(tmp_path: Path) -> None:
    long = "\n".join(f"value_{chr(97 + n)} = compute(left, right, '{chr(97 + n)}')" for n in range(26))
    near = long.replace("'z'", "'zz'")

    corpus = clean(tmp_path, [*CODE, CODE[0], long, near])

    assert stats(corpus)["dropped"] == {"duplicate": 1, "near_duplicate": 1}
    assert stats(corpus)["records"]["heldout"] == 1


def test_personal_data_and_text_of_tests_are_found_in_code(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(
        json.dumps(
            {"messages": [{"role": "user", "content": ITEM}, {"role": "assistant", "content": "İki."}]}
        )
        + "\n",
        encoding="utf-8",
    )
    texts = [*CODE, "# mail: rufat@example.az\nx = 1\n", f"q = '{ITEM}'\nprint(q)\n"]
    more = {"evaluate": {"questions": [str(tmp_path / "questions.jsonl")]}}

    corpus = clean(tmp_path, texts, pii=True, decontaminate=True, more=more)

    assert stats(corpus)["dropped"] == {"contaminated": 1}
    assert "# mail: <EMAIL>\nx = 1\n" in texts_of(corpus)


def test_code_that_holds_text_of_another_source_is_left_out_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())
    monkeypatch.setattr("anadil.overlap.run.executor_of_this_program", lambda _: InThisProcess())
    code = write_jsonl(tmp_path / "code.jsonl", [*CODE, AZERBAIJANI, ANOTHER])
    recipe = recipe_of(tmp_path, [str(code)], {"language": "none", "clean": {"rules": "none"}})

    rows = excluded(compared(recipe, "code", cleaned(recipe)))

    assert rows
    assert {row["of"] for row in rows} == {"web"}


def test_without_rules_only_empty_documents_go(tmp_path: Path) -> None:
    texts = [TURKISH, "Salam.", "=" * 2_000, ENGLISH, " \n\t"]

    corpus = clean(tmp_path, texts, language="en")

    counts = stats(corpus)
    assert counts["dropped"] == {"empty": 1}
    assert counts["limits"] == "none"
    assert (counts["limits_tried"], list(counts["rules"])) == ({}, ["empty"])
    assert counts["kept"] == 4


def test_without_rules_a_page_in_another_language_stays(tmp_path: Path) -> None:
    pages = write_warc(
        tmp_path / "a.warc.gz", [warc_record(page(text)) for text in (TURKISH, ENGLISH, ANOTHER)]
    )

    assert stats(clean(tmp_path, pages, language="en"))["kept"] == 3


def test_limits_may_judge_text_in_no_language(tmp_path: Path) -> None:
    corpus = clean(
        tmp_path, ["a b c d", "a b c", "b c d e"], rules={"min_words": 4, "min_mean_word_length": 1}
    )

    assert stats(corpus)["dropped"] == {"short": 1}
    assert stats(corpus)["limits"]["min_words"] == 4


def test_a_corpus_of_empty_documents_says_where_the_text_may_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dropped: empty 2; check clean\.text_field, or give more text$"):
        clean(tmp_path, ["", "\n"])


def test_explain_shows_text_in_no_language_as_the_corpus_has_it(tmp_path: Path) -> None:
    source = {"language": "none", "clean": {"rules": "none"}}
    recipe = recipe_of(tmp_path, ["code.jsonl"], source).of_source("code")

    steps = explain_record(RawRecord(source="code.jsonl:1", text=CODE[3]), Settings(recipe=recipe))

    assert steps["normalize"] == {"changed": False, "characters": len(CODE[3]), "begins": CODE[3]}
    assert [row["rule"] for row in steps["rules"]] == ["empty"]
    assert steps["verdict"] == "kept, unless it is a duplicate"


def test_an_index_of_a_crawl_cannot_be_asked_for_no_language() -> None:
    with pytest.raises(DataError, match="give the WARC files, or a language"):
        index_language("none")


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "clean.md").read_text(encoding="utf-8")


def test_the_limits_of_the_guide_are_keys_of_the_recipe() -> None:
    table = GUIDE[GUIDE.index("| rule | limit") : GUIDE.index("## Settings")]

    assert set(re.findall(r"`((?:min|max)_[a-z0-9_]+)`", table)) <= set(Rules.model_fields)


def test_the_help_of_the_stage_names_the_commands_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["clean", "--help"])

    assert f"anadil clean {'|'.join(STAGE_VERBS['clean'])}" in " ".join(capsys.readouterr().out.split())
