import gzip
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anadil.clean.dedup.sorted_documents import KeptDocument
from anadil.clean.filters.judge_record import FilterResult
from anadil.clean.shards.holdout import num_heldout
from anadil.clean.write.shard_output import kept_documents
from anadil.cli.main import main
from anadil.core.errors import DataError, RecipeError, RetryableError, Stopped
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.report.data_card import AS_IS, rules_note
from anadil.text.corpus import read_documents
from anadil.text.language_data import Language
from anadil.text.language_id import IdentifiedLanguage, identify_language
from tests.kit.clean_inputs import sentences, texts
from tests.kit.clean_stage import (
    bare_record,
    clean,
    content,
    documents,
    page,
    samples,
    stats,
    warc_record,
    write_jsonl,
    write_warc,
)
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE, TURKISH

DATA = os.environ.get("ANADIL_DATA", "")
needs_data = pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with az/, tr/ and warc/")


def test_raw_text_becomes_a_corpus(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(12), AZERBAIJANI, AZERBAIJANI.upper(), TURKISH, "Salam."])

    corpus = clean(tmp_path, raw)

    found = stats(corpus)
    assert found["in"] == 16
    assert found["dropped"] == {"duplicate": 1, "language": 1, "short": 1}
    assert found["kept"] == 13 == sum(found["records"].values())
    assert {document.lang for document in documents(corpus)} == {"az"}
    assert AZERBAIJANI in [document.text for document in documents(corpus)]


def test_dropped_documents_can_be_looked_at(tmp_path: Path) -> None:
    raw = write_jsonl(
        tmp_path / "a.jsonl", [*texts(3), *(f"{TURKISH} {n} " + "elma " * 900 for n in range(30))]
    )

    corpus = clean(tmp_path, raw)

    rows = samples(corpus, "language")
    assert len(rows) == 20
    assert rows == sorted(rows, key=lambda row: row["id"])
    assert {row["reason"] for row in rows} == {"language"}
    assert max(len(row["text"]) for row in rows) == 2_000


def test_the_order_of_the_inputs_does_not_change_a_byte(tmp_path: Path) -> None:
    lines = [*texts(30), TURKISH, ENGLISH, "Salam.", AZERBAIJANI, f"{AZERBAIJANI}  ", AZERBAIJANI.upper()]
    files = [write_jsonl(tmp_path / f"{n}.jsonl", lines[n::3]) for n in range(3)]
    first = content(clean(tmp_path, *files))

    second = content(clean(tmp_path, *reversed(files)))

    assert first == second


def test_a_warc_becomes_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.read.readers.MAX_RECORD_BYTES", 20_000)
    pages = [warc_record(page(text), url=f"https://a.az/{n}") for n, text in enumerate(texts(6))]
    pages += [
        warc_record(page(TURKISH), url="https://a.az/tr"),
        warc_record(page("x" + "<b>" * 5_000), url="https://a.az/b"),
        warc_record(page(*texts(60)), url="https://a.az/large"),
    ]
    pages += [warc_record(page(ENGLISH, head="<html>"), url="https://a.az/en")]

    corpus = clean(tmp_path, write_warc(tmp_path / "a.warc.gz", pages))

    assert sorted(document.url for document in documents(corpus)) == [f"https://a.az/{n}" for n in range(6)]
    assert stats(corpus)["dropped"] == {"language": 2, "page_limits": 2}
    limits = {
        row["url"]: (row["statistic"], row["value"], row["limit"]) for row in samples(corpus, "page_limits")
    }
    assert limits == {
        "https://a.az/b": ("copies_of_style", 300_700, 300_000),
        "https://a.az/large": ("bytes", 16 * 1024**2, 2_000_000),
    }
    assert documents(corpus)[0].source.startswith("a.warc.gz:")


def test_a_corpus_that_is_empty_after_cleaning_says_why(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", [TURKISH, ENGLISH, "Salam, necəsən?"])

    with pytest.raises(
        DataError, match=r"empty .*: 3 documents in, dropped: language 2, short 1; check language \(az\)"
    ):
        clean(tmp_path, raw)


def test_an_input_that_the_tests_hold_is_no_matter_of_rules(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(2))

    with pytest.raises(DataError, match=r"contaminated 2; .*set clean.decontaminate to false"):
        clean(tmp_path, raw, decontaminate=True, others={"evaluate": {"heldout": [str(raw)]}})


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (sentences(), {}, r"short 8; lower clean\.rules\.min_words \(50\)"),
        ([], {}, "the files hold no document that can be read"),
        (
            texts(2),
            {"text_field": "body", "max_bad_records": 1},
            r"clean\.inputs: the files hold no document that can be read.*first: a\.jsonl:1: no key 'body'",
        ),
        ([AZERBAIJANI], {}, "corpus has 1 document after cleaning, and one must be held out"),
    ],
    ids=["short", "none", "unreadable", "single"],
)
def test_text_that_gives_no_corpus_is_refused_with_the_reason(
    tmp_path: Path, given: list[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", given), **settings)


def test_of_documents_that_are_all_identical_but_one_two_are_left(tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [AZERBAIJANI] * 500) for name in "ab"]

    corpus = clean(tmp_path, *files, write_jsonl(tmp_path / "c.jsonl", [ANOTHER]), shard_bytes=50_000)

    assert stats(corpus)["dropped"] == {"duplicate": 999}
    assert {document.source for document in documents(corpus)} == {"a.jsonl:1", "c.jsonl:1"}


def test_lone_surrogates_do_not_reach_the_corpus(tmp_path: Path) -> None:
    raw = tmp_path / "a.jsonl"
    rows = [{"text": f"{text} \ud83d", "url": "https://a.az/\ud800", "source": "\udfff"} for text in texts(3)]
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))

    corpus = clean(tmp_path, raw)

    assert {document.url for document in documents(corpus)} == {"https://a.az/?"}
    assert sorted(document.source for document in documents(corpus)) == [f"a.jsonl:{n} ?" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("kind", "content_type"), [("conversion", "application/json"), ("resource", "text/plain")]
)
def test_an_archive_without_pages_is_named_as_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, content_type: str
) -> None:
    wat = bare_record(texts(1)[0].encode(), kind, content_type)
    (tmp_path / "wat.warc.gz").write_bytes(gzip.compress(wat, mtime=0))
    why = r"wat\.warc\.gz holds no web page .*give the WARC files that they were made of"

    with pytest.raises(DataError, match=why):
        clean(tmp_path / "1", tmp_path / "wat.warc.gz")
    clean(tmp_path / "2", tmp_path / "wat.warc.gz", write_jsonl(tmp_path / "a.jsonl", texts(3)))

    assert re.search(why, caplog.text)
    assert stats(tmp_path / "2" / "corpus")["not_read"] == {kind: 1}


class PanicException(BaseException):
    """What libraries in Rust raise; they name it so."""


@pytest.mark.parametrize(
    "error", [ValueError("odd"), RecursionError("deep"), LookupError("x"), PanicException("index")]
)
def test_a_document_that_a_step_fails_on_is_counted_with_its_place(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing_on(monkeypatch, "Bakıda", error)
    raw = write_jsonl(tmp_path / "a.jsonl", ["Bakıda qar.", *texts(9)])

    found = stats(clean(tmp_path, raw, max_bad_records=0.5))

    assert (found["in"], found["kept"], found["bad"]) == (9, 9, 1)
    assert found["bad_records"]["first"] == [f"a.jsonl:1: {type(error).__name__}: {error}"]
    assert "a.jsonl:1: skipped" in caplog.text
    with pytest.raises(
        DataError, match=rf"1 of 10 records are unreadable .*\n  a\.jsonl:1: {type(error).__name__}"
    ):
        clean(tmp_path, raw)


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(), Stopped("signal"), MemoryError(), OSError(28, "No space left on device"),
        OSError(5, "Input/output error"), RetryableError("storage did not answer"), SystemExit(3),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_documents_fault_ends_the_stage(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_on(monkeypatch, "Bakıda", error)
    raw = write_jsonl(tmp_path / "a.jsonl", ["Bakıda qar.", *texts(9)])

    with pytest.raises(type(error)) as ended:
        clean(tmp_path, raw, max_bad_records=0.5)

    assert ended.value is error


def test_a_document_that_the_rules_fail_on_takes_no_other_of_its_batch_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(judged: Sequence[FilterResult], *others: Any) -> list[KeptDocument]:
        if any(each.extracted.document.text.startswith("Bakıda") for each in judged):
            raise ValueError("odd")
        return kept_documents(judged, *others)

    monkeypatch.setattr("anadil.clean.shards.map_shard.kept_documents", failing)
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(5), "Bakıda qar.", *texts(9)[5:]])

    found = stats(clean(tmp_path, raw, max_bad_records=0.5))

    assert (found["in"], found["kept"], found["bad"]) == (9, 9, 1)
    assert found["bad_records"]["first"] == ["a.jsonl:6: ValueError: odd"]


def failing_on(monkeypatch: pytest.MonkeyPatch, start: str, error: BaseException) -> None:
    """Let the identifier fail on texts that begin so."""

    def failing(text: str, language: Language) -> IdentifiedLanguage:
        if text.startswith(start):
            raise error
        return identify_language(text, language)

    monkeypatch.setattr("anadil.clean.filters.judge_record.identify_language", failing)


@pytest.mark.parametrize(
    ("num_documents", "num_below", "most", "expected"),
    [(2, 0, 100, 1), (2, 2, 100, 1), (1_000, 500, 10, 10), (1_000, 7, 10, 7)],
)
def test_there_is_always_text_to_train_on_and_text_held_out(
    num_documents: int, num_below: int, most: int, expected: int
) -> None:
    assert num_heldout(num_below, num_documents, most) == expected


def test_a_document_stays_on_its_side_when_others_come(tmp_path: Path) -> None:
    small = clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", texts(60)), heldout_fraction=0.3)
    first = {document.id for document in read_documents(small, "heldout")}

    large = clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", texts(120)), heldout_fraction=0.3)

    assert first < {document.id for document in read_documents(large, "heldout")}


@needs_data
def test_no_page_in_another_language_enters_the_corpus(tmp_path: Path) -> None:
    manifest = (
        json.loads(line) for line in (Path(DATA) / "warc/manifest.jsonl").read_text("utf-8").splitlines()
    )
    truth = {row["url"]: row["lang"] for row in manifest}

    corpus = clean(tmp_path, Path(DATA) / "warc/part-00000.warc.gz")

    found = [truth[document.url] for document in documents(corpus)]
    assert set(found) <= {"az", "az-neardup"}
    assert len(found) > 40


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
