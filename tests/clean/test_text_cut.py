"""Documents of a `.txt`."""

import random
import textwrap
from pathlib import Path

import pytest

from anadil.clean.read import text_cut
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.clean.read.text_cut import txt_document_of
from anadil.clean.shards import shards
from anadil.recipe.clean import TxtDocument
from anadil.recipe.sections import Recipe
from tests.kit.clean_stage import clean, rows, stats
from tests.kit.texts import AZERBAIJANI

PARAGRAPH = " ".join(AZERBAIJANI.split())[:400].rpartition(".")[0] + "."
LINES = "".join(f"Sənəd {number}. {PARAGRAPH}\n" for number in range(30))
BLOCKS = "".join(f"Sənəd {number}. {PARAGRAPH}\n{PARAGRAPH}\n\n" for number in range(30))
WRAPPED = "\n\n".join(textwrap.fill(PARAGRAPH, 70) for _ in range(30))
POEM = "\n".join(textwrap.wrap(PARAGRAPH * 4, 35))
SENTENCES = "".join(f"Bu gün hava {number} dərəcədir.\n" for number in range(30))
NUMBERED = "".join(f"{number}\tBu gün hava yaxşıdır\n" for number in range(30))


def read(path: Path, data: bytes, cut: TxtDocument) -> tuple[list[str], ReadStats]:
    path.write_bytes(data)
    read_stats = ReadStats()
    records = list(read_records(str(path), path.name, "text", read_stats, language="az", txt_document=cut))
    assert len({record.source for record in records}) == len(records)
    return [record.text for record in records], read_stats


@pytest.mark.parametrize(
    ("text", "asked", "cut", "number"),
    [
        (LINES, "guess", "line", 30),
        (LINES, "file", "file", 1),
        (BLOCKS, "guess", "block", 30),
        (BLOCKS, "line", "line", 60),
        (NUMBERED, "guess", "line", 30),
        (WRAPPED, "guess", "file", 1),
        (WRAPPED, "block", "block", 30),
        (POEM, "guess", "file", 1),
        ("\n".join(LINES.splitlines()[:5]), "guess", "file", 1),
        (SENTENCES, "guess", "file", 1),
        (SENTENCES.replace("\n", "\n\n"), "guess", "file", 1),
        (f"{POEM}\n<|endoftext|>\n\n{POEM}\n<|endoftext|>\n{POEM}", "guess", "block", 3),
        ('<doc id="1">\nQax\n\n' + POEM + '\n</doc>\n<doc id="2">\nBakı\n' + SENTENCES, "guess", "block", 2),
        (SENTENCES, "file", "file", 1),
    ],
)
def test_a_file_is_cut_as_it_is_written_or_as_asked(
    tmp_path: Path, text: str, asked: TxtDocument, cut: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    texts, read_stats = read(tmp_path / "a.txt", text.replace("\n", "\r\n").encode(), asked)
    is_doubtful = text == SENTENCES and asked == "guess"
    assert (len(texts), read_stats.txt_documents) == (
        number,
        {cut: 1, **({"doubtful": 1} if is_doubtful else {})},
    )
    assert (
        "a.txt: is taken for one document, and its lines end as sentences do" in caplog.text
    ) == is_doubtful
    assert texts[-1].split()[-1] == text.rsplit(maxsplit=1)[-1]


@pytest.mark.parametrize(("codec", "cut"), [("utf-8-sig", "line"), ("cp1254", "line"), ("utf-16", "line")])
def test_lines_of_other_encodings_are_read(tmp_path: Path, codec: str, cut: str) -> None:
    texts, read_stats = read(tmp_path / "a.txt", LINES.replace("ə", "e").encode(codec, "ignore"), "guess")
    assert read_stats.txt_documents == {cut: 1}
    assert texts[0].startswith("Sened 0. ")
    assert len(texts) == 30


def test_numbers_of_lines_are_no_text(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt", NUMBERED.encode(), "guess")[0][7] == "Bu gün hava yaxşıdır"


def test_a_large_file_of_lines_is_read_in_ranges_with_the_numbers_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    draw, words = random.Random(1), AZERBAIJANI.split()
    lines = (" ".join(draw.choices(words, k=60)) + ".\n" for _ in range(30))
    path.write_text("".join(lines), encoding="utf-8")
    whole = rows(clean(tmp_path / "whole", path, rules="none"))
    monkeypatch.setattr(shards, "MIN_SHARD_BYTES", 1_000)
    parts = clean(tmp_path / "parts", path, rules="none", shard_bytes=2_000)
    assert [(row["id"], row["source"]) for row in rows(parts)] == [
        (row["id"], row["source"]) for row in whole
    ]
    assert whole[29]["source"] == "a.txt:30"
    assert stats(parts)["txt_documents"] == {"line": 1}


@pytest.mark.parametrize(
    ("asked", "as_is", "cut"), [("guess", True, "file"), ("line", True, "line"), ("guess", False, "guess")]
)
def test_a_file_of_text_that_stays_as_it_is_is_one_document_unless_asked(
    asked: str, as_is: bool, cut: str
) -> None:
    recipe = Recipe.model_validate({"language": "az", "clean": {"txt_document": asked, "as_is": as_is}})
    assert txt_document_of(recipe) == cut


def test_a_large_file_that_is_taken_for_one_document_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_cut, "MAX_DOCUMENT_BYTES", 100)
    assert len(read(tmp_path / "a.txt", POEM.encode(), "guess")[0]) == 1
    assert "are taken for one document; where it holds more of them, set clean.txt_document" in caplog.text
