"""Texts, labels and answers."""

import json
import threading
from pathlib import Path

import pytest

from anadil.core.errors import DataError, IntegrityError
from anadil.text.corpus import Document, write_documents
from anadil.watch.data import one_document
from anadil.watch.data.one_document import (
    explain_document,
    kept_document,
    label_of,
    labels_folder,
    num_labels,
    rejected_sample,
    removed_lines,
    set_label,
)


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


def test_a_damaged_part_says_so(corpus: Path) -> None:
    part = min((corpus / "train").iterdir())
    part.write_bytes(b"x" * 100)
    one_document._first_id.cache_clear()

    with pytest.raises(IntegrityError, match=r"cannot be read .*; make the corpus again"):
        kept_document(str(corpus), f"{2:032x}")


def test_a_reason_names_no_other_file(corpus: Path) -> None:
    assert rejected_sample(str(corpus), "../stats", "a.jsonl:1", "0") is None


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

    with pytest.raises(
        DataError, match=r"good.jsonl: a line is not a JSON object .*; correct it or take it out"
    ):
        set_label(tmp_path, {"id": "2"}, "good")
    with pytest.raises(DataError, match="nice: not a label; give good or bad"):
        set_label(tmp_path, {"id": "2"}, "nice")
    assert "broken" in (tmp_path / "good.jsonl").read_text()


def test_removed_lines_are_those_that_are_no_more_there() -> None:
    assert removed_lines("Menyu\n\nXəbər bu gün.\nMenyu\n", "Xəbər bu gün.") == ["Menyu", "Menyu"]


@pytest.mark.slow  # a process of its own, which loads the extractors
def test_a_page_is_shown_beside_what_each_step_removed() -> None:
    files = {"inputs": ["builtin:az/pages.warc.gz"]}
    recipe = {"language": "az", "clean": files, "sources": {"az": files}}

    with pytest.raises(DataError, match="the record there is not document 0 of the corpus, but") as refusal:
        explain_document("pages.warc.gz:485", "0", recipe)
    number = str(refusal.value).partition(", but ")[2][:32]
    steps = {step.name: step for step in explain_document("pages.warc.gz:485", number, recipe)}
    assert list(steps) == ["read", "extract", "normalize", "line_language", "written"]
    assert steps["read"].text.startswith("<!doctype html>")
    assert steps["read"].num_removed == 0
    assert {"Ana səhifə", "Daxil ol"} <= set(steps["extract"].removed)
    assert steps["written"].text.startswith("Vulkanların palçığı")
    assert steps["written"].num_removed == 0
    with pytest.raises(DataError, match="no such record in the 1 input"):
        explain_document("pages.warc.gz:3", number, recipe)
