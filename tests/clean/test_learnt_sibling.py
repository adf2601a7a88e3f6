"""What a sample holds of a document, and a pack that the text of a sibling passes."""

from pathlib import Path

import pytest

from anadil.cli import main
from anadil.language import learn_language as learning
from anadil.language.learn_language import LearntLanguage, split_texts
from anadil.text.language import load_language
from anadil.text.language_pack import Identification, LanguagePack
from tests.kit.constructed import documents, write_documents_of


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

    assert main.main(command) == 3
    told = capsys.readouterr().err
    assert "takes the sample for Kinyarwanda (rw)" in told
    assert "--accept-sibling" in told
    assert not out.exists()

    assert main.main([*command, "--accept-sibling"]) == 0
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
