"""The part of the held-out text by which a merge is tuned."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.core.errors import DataError
from anadil.evaluate.heldout import Heldout, read_heldout
from anadil.evaluate.own_chat import target_tuning, tuning_part, without_tuning
from anadil.text.corpus import Document, write_documents

from .conftest import document

FOR_TUNING, FOR_SCORES = (
    [
        text
        for text in (f"Bakıda {number} nömrəli avtobus" for number in range(100))
        if (int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 4 == 0) is tuning
    ]
    for tuning in (True, False)
)


def documents(*texts: str, lang: str = "az") -> tuple[Document, ...]:
    return tuple(replace(document(text, f"{lang} {text}"), lang=lang) for text in texts)


def corpus_of(folder: Path, *texts: str) -> Path:
    write_documents(folder, "heldout", documents(*texts))
    return folder


def test_a_quarter_is_for_tuning() -> None:
    tuning, scored = tuning_part(documents(*FOR_TUNING, *FOR_SCORES))

    assert {each.text for each in tuning} == set(FOR_TUNING)
    assert {each.text for each in scored} == set(FOR_SCORES)
    assert 15 < len(FOR_TUNING) < 35


def test_a_document_is_on_the_same_side_whatever_others_there_are() -> None:
    text = (FOR_TUNING[0], FOR_SCORES[0])

    assert [len(side) for side in tuning_part(documents(*text, *FOR_SCORES[1:9]))] == [1, 9]
    assert [side[0].text for side in tuning_part(documents(*text))] == list(text)


def test_two_documents_with_the_same_text_are_on_one_side() -> None:
    twice = replace(documents(FOR_TUNING[0])[0], id="again")

    tuning, scored = tuning_part((*documents(FOR_TUNING[0], FOR_SCORES[0]), twice))

    assert [each.text for each in tuning] == [FOR_TUNING[0]] * 2
    assert [each.text for each in scored] == [FOR_SCORES[0]]


@pytest.mark.parametrize("texts", [FOR_TUNING[:3], FOR_SCORES[:3], []])
def test_where_one_part_would_be_empty_all_is_for_scores(texts: list[str]) -> None:
    assert tuning_part(documents(*texts)) == ((), documents(*texts))


def test_each_text_is_split_for_itself_and_in_order() -> None:
    english, russian = documents(FOR_SCORES[0], FOR_TUNING[0], lang="en"), documents(FOR_TUNING[1], lang="ru")

    tuning, scored = tuning_part((english[0], *russian, english[1]))

    assert tuning == (english[1],)
    assert scored == (english[0], *russian)


def test_files_lose_only_documents_of_the_corpus_that_are_for_tuning(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", FOR_TUNING[0], FOR_SCORES[0])
    heldout = Heldout(
        documents=documents(*FOR_TUNING[:3], *FOR_SCORES[:2]), source="files", files=("a.jsonl",)
    )

    scored, _, counts = without_tuning(heldout, (), [corpus])

    assert [each.text for each in scored.documents] == [*FOR_TUNING[1:3], *FOR_SCORES[:2]]
    assert counts == {"heldout": {"tuning": 1, "scored": 4}, "retained": {}}
    assert [each.text for each in target_tuning([corpus])] == [FOR_TUNING[0]]


def test_files_that_hold_only_text_for_tuning_are_a_data_error(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", FOR_TUNING[0], FOR_SCORES[0])
    heldout = Heldout(documents=documents(FOR_TUNING[0]), source="files", files=("a.jsonl",))

    with pytest.raises(DataError, match=r"a\.jsonl: all 1 documents also stand .* tuned; name other files"):
        without_tuning(heldout, (), [corpus])


def test_duplicates_are_counted_among_what_is_scored(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", *FOR_TUNING[:1] * 3, *FOR_SCORES[:1] * 2)

    scored, _, counts = without_tuning(read_heldout([corpus], (), "text", "az"), (), [corpus])

    assert scored.repeated == 1
    assert counts["heldout"] == {"tuning": 3, "scored": 2}


def test_counts_of_both_parts_are_told_of_each_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = corpus_of(tmp_path / "corpus", *FOR_TUNING[:2], *FOR_SCORES[:6])
    retained = (*documents(FOR_TUNING[3], *FOR_SCORES[:3], lang="en"), *documents(FOR_SCORES[0], lang="ru"))

    with caplog.at_level("INFO"):
        _, scored, counts = without_tuning(read_heldout([corpus], (), "text", "az"), retained, [corpus])

    assert len(scored) == 4
    assert counts["retained"] == {"en": {"tuning": 1, "scored": 3}, "ru": {"tuning": 0, "scored": 1}}
    assert "not scored: 2 of 8 (held-out text), 1 of 4 (en), 0 of 1 (ru)" in caplog.text
