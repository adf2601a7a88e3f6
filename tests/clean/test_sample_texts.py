"""Samples that are learnt of: what they hold, and what they lack."""

import logging
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.core.errors import DataError
from anadil.language import learn_language as learning
from anadil.language.learn_language import LearntLanguage, learn_language, split_texts
from anadil.language.sample_parts import read_texts
from anadil.text.language import load_language
from anadil.text.language_pack import Identification, LanguagePack
from tests.kit.clean_stage import write_jsonl
from tests.kit.constructed import documents, write_documents_of


def test_unreadable_records_of_a_sample_are_said_with_their_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["bir"])
    path.write_bytes(path.read_bytes() + b'{"body": "iki"}\n')

    with caplog.at_level(logging.WARNING):
        assert list(read_texts([str(path)], "text")) == ["bir"]

    assert "1 of 2 records are unreadable (50.00%) and were skipped" in caplog.text
    assert "a.jsonl:2: no key 'text'" in caplog.text


@pytest.mark.parametrize(
    ("content", "why"), [(b'{"content": "a"}', "no key 'text' .* among 'content'"), (b"", "it is empty")]
)
def test_learning_says_why_a_file_holds_no_text(
    content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    path = str(tmp_path / "a.jsonl")

    assert main(["language", "learn", "qaa", path, "--out", str(tmp_path / "qaa.yaml")]) == 3

    with pytest.raises(DataError, match=rf"a\.jsonl: holds no text that can be read; .*{why}"):
        list(read_texts([path], "text"))
    assert "holds no text that can be read" in capsys.readouterr().err


def test_repetitions_do_not_make_a_sample_large() -> None:
    with pytest.raises(DataError, match=r"the sample holds .* KiB of text without its repetitions"):
        learn_language("qaa", documents(10) * 1_000, {})

    assert split_texts(["bir iki"] * 9).num_bytes == len("bir iki")


def test_bad_text_that_is_too_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 1_000)

    with pytest.raises(DataError, match=r"--bad noise\.txt: 3 B of text is too little to learn from"):
        learn_language("qaa", documents(20), {"noise.txt": ["bir"]})


def test_a_sample_of_figures_makes_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 1_000)
    figures = [" ".join(str(start + each * 7919) for each in range(60)) for start in range(40)]

    with pytest.raises(DataError, match="the sample holds no letter"):
        learn_language("qaa", figures, {})


def test_bad_files_of_one_name_in_two_directories_are_both_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 1_000)
    sample = write_documents_of(tmp_path / "sample.jsonl", documents(20))
    files = [tmp_path / place / "a.jsonl" for place in ("ru", "tr")]
    for file, texts in zip(files, (["bir"], documents(20, seed=1)), strict=True):
        file.parent.mkdir()
        write_documents_of(file, texts)

    main(
        [
            "language", "learn", "qaa", str(sample), "--bad", *map(str, files), "--out",
            str(tmp_path / "q.yaml"),
        ]
    )  # fmt: skip

    assert "--bad ru/a.jsonl: 3 B of text is too little" in capsys.readouterr().err


def test_an_id_that_no_pack_can_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["language", "learn", "a" * 65, "no.txt", "--out", str(tmp_path / "a.yaml")]) == 2

    assert "64 at most" in capsys.readouterr().err


def test_a_pack_that_a_siblings_text_passes_is_written_only_where_the_user_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = LanguagePack(
        code="rn", name="Rundi", script="Latn", identification=Identification(cld2=("rn",), sibling="rw")
    )
    monkeypatch.setattr(learning, "learn_language", lambda *_: LearntLanguage(pack=pack))
    out = tmp_path / "rn.yaml"
    command = [
        "language",
        "learn",
        "rn",
        str(write_documents_of(tmp_path / "own.jsonl", documents(9))),
        "--out",
        str(out),
    ]

    assert main(command) == 3
    told = capsys.readouterr().err
    assert "takes the sample for Kinyarwanda (rw)" in told
    assert "--accept-sibling" in told
    assert not out.exists()

    assert main([*command, "--accept-sibling"]) == 0
    assert load_language(str(out)).sibling == "rw"


def test_pieces_of_a_document_are_fitted_on_or_set_aside_together() -> None:
    books = [
        "\n".join(f"book {book}, line {number} of all it says" for number in range(300)) for book in range(40)
    ]

    found = split_texts(books)

    sides = [{text.split(",")[0] for text in texts} for texts in (found.fit, found.aside)]
    assert len(found.fit) + len(found.aside) > 100
    assert sides[1]
    assert sides[0].isdisjoint(sides[1])
