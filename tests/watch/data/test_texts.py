"""Texts, labels, answers, chats and changes of a recipe."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError, IntegrityError, RecipeError
from anadil.text.corpus import Document, write_documents
from anadil.watch.data import texts
from anadil.watch.data.answers import OTHER, topics_of
from anadil.watch.data.children import explain_document, removed_lines
from anadil.watch.data.labels import label_of, labels_folder, num_labels, set_label
from anadil.watch.data.recipe_change import change_of, lines_to_paste, set_option, write_change
from anadil.watch.data.shown_chats import marked_spans
from anadil.watch.data.texts import kept_document, rejected_sample, search_texts

KEYS = ("clean", "rules", "min_words")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of several small files: 300 documents to train on, 20 held out."""
    monkeypatch.setattr("anadil.text.corpus.MAX_PART_BYTES", 2_000)
    folder = tmp_path / "corpus"
    for part, numbers in (("train", range(0, 600, 2)), ("heldout", range(1, 40, 2))):
        write_documents(folder, part, [_document(number) for number in numbers])  # type: ignore[arg-type]
    return folder


def _document(number: int) -> Document:
    text = f'Sənəd {number}: "İqtisadiyyat" və\nidman. {"Xəzər" if number % 100 == 0 else "Kür"}'
    return Document(id=f"{number:032x}", text=text, source=f"a.jsonl:{number}", url="", lang="az")


def test_every_document_is_found_by_its_id(corpus: Path) -> None:
    for number in (0, 1, 2, 39, 298, 598):
        answer = kept_document(str(corpus), f"{number:032x}")

        assert answer is not None
        part, document = answer
        assert (part, document["source"]) == ("heldout" if number % 2 else "train", f"a.jsonl:{number}")
    for number in (41, 601):
        assert kept_document(str(corpus), f"{number:032x}") is None


def test_a_search_goes_on_where_the_page_before_ended(corpus: Path) -> None:
    found: list[str] = []
    start, pages = "", 0
    while pages == 0 or start:
        page = search_texts(str(corpus), "xəzər", start, size=4, budget_s=60)
        found += [hit.document["source"] for hit in page.hits]
        start, pages = page.next, pages + 1

    assert sorted(found) == sorted(f"a.jsonl:{number}" for number in range(0, 600, 100))
    assert pages == 2


@pytest.mark.parametrize("words", ["iqtisadiyyat", "İQTİSADİYYAT", "İqtisadiyyat", '"İqtisadiyyat"'])
def test_words_are_found_in_other_case_and_beside_what_json_escapes(corpus: Path, words: str) -> None:
    page = search_texts(str(corpus), words, size=1)

    assert page.hits[0].words.strip('"') == "İqtisadiyyat"
    assert page.hits[0].before.startswith("Sənəd 0: ")


def test_a_search_for_nothing_is_refused(corpus: Path) -> None:
    with pytest.raises(DataError, match="is too short; write 2 characters or more"):
        search_texts(str(corpus), " a ")
    with pytest.raises(DataError, match="not a place to go on from; search again"):
        search_texts(str(corpus), "Kür", "../../x")


def test_a_damaged_part_says_so(corpus: Path) -> None:
    part = min((corpus / "train").iterdir())
    part.write_bytes(part.read_bytes()[:40])
    texts._first_id.cache_clear()

    with pytest.raises(IntegrityError, match=r"cannot be read .*; make the corpus again"):
        search_texts(str(corpus), "Kür", budget_s=60)


def test_a_reason_names_no_other_file(corpus: Path) -> None:
    assert rejected_sample(str(corpus), "../stats", "a.jsonl:1") is None


def test_labels_are_written_once_each_by_two_writers(tmp_path: Path) -> None:
    folder = labels_folder(("s3://bucket/x", str(tmp_path)))
    rows = [{"id": str(number), "text": f"mətn {number}", "source": "a:1"} for number in range(20)]

    def label(numbers: range, word: str) -> None:
        for number in numbers:
            set_label(folder, rows[number], word)

    threads = [threading.Thread(target=label, args=(range(start, 20, 2), "good")) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    set_label(folder, rows[3], "bad")
    set_label(folder, rows[3], "bad")
    set_label(folder, rows[4], "")

    assert folder == tmp_path / "labels"
    assert num_labels(folder) == {"good": 18, "bad": 1}
    assert (label_of(folder, "3"), label_of(folder, "4"), label_of(folder, "5")) == ("bad", None, "good")
    assert json.loads((folder / "bad.jsonl").read_text(encoding="utf-8")) == rows[3]


def test_a_damaged_file_of_labels_is_not_written_over(tmp_path: Path) -> None:
    set_label(tmp_path, {"id": "1"}, "good")
    with (tmp_path / "good.jsonl").open("a") as file:
        file.write("{broken\n")

    with pytest.raises(DataError, match=r"good.jsonl:2: not a JSON object; correct the line or take it out"):
        set_label(tmp_path, {"id": "2"}, "good")
    with pytest.raises(DataError, match="nice: not a label; give good or bad"):
        set_label(tmp_path, {"id": "2"}, "nice")
    assert "broken" in (tmp_path / "good.jsonl").read_text()


def test_questions_with_a_word_in_common_are_one_topic() -> None:
    balance = ["Balansımı necə yoxlayım?", "Balansım nə qədərdir?", "Balansıma pul köçürün"]
    roaming = ["Rominqi necə qoşum?", "Türkiyədə rominqim işləyirmi?", "Rominqdə neçəyədir?"]
    others = [f"Sual {'abcdefghij'[number] * 5}" for number in range(10)]

    topics = topics_of([*balance, *roaming, *others])

    assert {topics[text][:6] for text in balance} == {"balans"}
    assert {topics[text][:6] for text in roaming} == {"rominq"}
    assert {topics[text] for text in others} == {OTHER}


def test_spans_of_a_sample_say_what_is_trained() -> None:
    sample = "<user>Salam<end>\n\u27e6Salam!<end>\u27e7\n"

    assert marked_spans(sample) == [("<user>Salam<end>\n", False), ("Salam!<end>", True), ("\n", False)]


def test_removed_lines_are_those_that_are_no_more_there() -> None:
    assert removed_lines("Menyu\n\nXəbər bu gün.\nMenyu\n", "Xəbər bu gün.") == ["Menyu", "Menyu"]


RECIPES: dict[str, tuple[str, str]] = {
    "value": ("clean:\n  rules:\n    min_words: 50   # short news\n  pii: true\n", "clean:\n  rules:\n    min_words: 20   # short news\n  pii: true\n"),
    "key": ("clean:\n  rules:\n    max_foreign: .2\n\n# below\nseed: 1\n", "clean:\n  rules:\n    max_foreign: .2\n    min_words: 20\n\n# below\nseed: 1\n"),
    "section": ("# mine\nclean:\n    pii: true\nseed: 1\n", "# mine\nclean:\n    pii: true\n    rules:\n      min_words: 20\nseed: 1\n"),
    "nothing": ("language: az\n", "language: az\nclean:\n  rules:\n    min_words: 20\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", RECIPES)
def test_a_limit_is_written_beside_every_comment(tmp_path: Path, case: str) -> None:
    before, after = RECIPES[case]
    path = tmp_path / "my.yaml"
    path.write_text(before, encoding="utf-8")

    change = change_of(str(path), KEYS, 20.0)

    assert path.read_text(encoding="utf-8") == before
    write_change(change, change.digest)
    assert path.read_text(encoding="utf-8") == (after if after.endswith("\n") else after + "\n")
    assert any(line.startswith("+") and "min_words: 20" in line for line in change.diff)
    assert [each.name for each in tmp_path.iterdir()] == ["my.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "clean: {rules: {min_words: 50}}\n",
        "clean:\n  rules: none\n",
        '"clean":\n  rules:\n    min_words: 5\n',
    ],
)
def test_a_form_that_is_not_changed_is_left_to_the_user(tmp_path: Path, text: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(RecipeError, match="paste the line by hand"):
        change_of(str(path), KEYS, 20)
    assert path.read_text(encoding="utf-8") == text


def test_a_change_that_nobody_has_looked_at_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("language: az\n", encoding="utf-8")
    seen = change_of(str(path), KEYS, 20).digest
    path.write_text("language: tr\n", encoding="utf-8")

    with pytest.raises(RecipeError, match="was changed meanwhile; look at the change again"):
        write_change(change_of(str(path), KEYS, 20), seen)
    refused = change_of(str(path), ("clean", "rules", "max_foreign"), 20)
    with pytest.raises(RecipeError, match="not written, since the recipe would be refused"):
        write_change(refused, refused.digest)
    with pytest.raises(DataError, match=r"no such recipe; give the path of the \.yaml file"):
        change_of("/etc/passwd", KEYS, 20)
    assert path.read_text(encoding="utf-8") == "language: tr\n"


def test_what_is_pasted_says_the_same_as_the_option() -> None:
    keys: Any = ("sources", "web", *KEYS)

    assert lines_to_paste(keys, 20.0) == "sources:\n  web:\n    clean:\n      rules:\n        min_words: 20"
    assert set_option(KEYS, 0.25) == "--set clean.rules.min_words=0.25"


@pytest.mark.slow  # a process of its own, which loads the extractors
def test_a_page_is_shown_beside_what_each_step_removed() -> None:
    files = {"inputs": ["builtin:az/pages.warc.gz"]}
    recipe = {"language": "az", "clean": files, "sources": {"az": files}}

    explained = explain_document("pages.warc.gz:485", recipe)

    steps = {step.name: step for step in explained.steps}
    assert list(steps) == ["read", "extract", "normalize", "line_language", "written"]
    assert steps["read"].text.startswith("<!doctype html>")
    assert steps["read"].num_removed == 0
    assert {"Ana səhifə", "Daxil ol"} <= set(steps["extract"].removed)
    assert steps["written"].text.startswith("Vulkanların palçığı")
    assert steps["written"].num_removed == 0
    with pytest.raises(DataError, match="no such record in the 1 input"):
        explain_document("pages.warc.gz:3", recipe)
