import json
import shutil
from pathlib import Path

import pytest

from anadil.artifacts.base_model import base_tokenizer
from anadil.cli import main
from anadil.recipe.sections import Base

TEXT = "return the value"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_tokenizer(Base(model="tiny"), tmp_path_factory.mktemp("base"))


def test_a_text_is_cut_by_the_base_of_the_recipe(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.runtime.execute.base_cache", lambda _: tiny.parent)

    assert main.main(["tokenizer", "inspect", TEXT]) == 0

    shown = capsys.readouterr().out.splitlines()
    pieces = shown[-1].removeprefix("  ").split("|")
    assert "".join(pieces) == TEXT
    tokens = len(pieces)
    assert shown[1].split() == ["tiny", "4,102", str(tokens), f"{tokens / 3:.3f}", f"{16 / tokens:.2f}"]


def test_all_candidates_of_an_artifact_stand_side_by_side(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("base", "other"):
        shutil.copytree(tiny, tmp_path / "artifact" / "candidates" / name)

    code = main.main(
        ["tokenizer", "inspect", TEXT, "--tokenizer", str(tmp_path / "artifact"), str(tiny), "-o", "json"]
    )

    rows = json.loads(capsys.readouterr().out)["tokenizers"]
    assert code == 0
    assert [row["name"] for row in rows] == ["base", "other", str(tiny)]
    assert all("".join(row["pieces"]) == TEXT and len(row["ids"]) == row["tokens"] for row in rows)


def test_an_empty_text_and_a_directory_without_a_tokenizer_are_errors_of_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tokenizer", "inspect", " "]) == 3
    assert main.main(["tokenizer", "inspect", TEXT, "--tokenizer", str(tmp_path)]) == 3
    assert "give a directory that holds a tokenizer" in capsys.readouterr().err


def test_a_directory_is_a_tokenizer_and_cuts_the_prompts_of_the_language(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tokenizer", "inspect", str(tiny), "--set", "language=tr"]) == 0
    alone = capsys.readouterr().out
    assert main.main(["tokenizer", "inspect", TEXT, str(tiny)]) == 0
    beside = capsys.readouterr().out

    assert alone.splitlines()[1].startswith(str(tiny))
    assert "".join(beside.splitlines()[-1].strip().split("|")) == TEXT
